"""What a session fetches beside an update under HFDT: means, sums and rows are combined; the rest is whole."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.client.session import BaseSession
from tensorflow.python.ops import gradients_util

from client_shim.replica.sessions.gradients import Gradients
from client_shim.replica.sessions.plans import FetchPlan, ancestors
from fdt.errors import CaptureError
from hfdt.replica.session_outputs import OutputKind, exactly
from hfdt.replica.session_sources import CellSources
from hfdt.replica.session_trials import TrialHistory, tried
from tests.single.test_replica_sessions import CONFIG, X, hfdt_sessions, on_ranks
from tests.single.thread_groups import MemoryGroup

v1 = tf.compat.v1


def fetches(gradients):
    """A graph whose weights begin at 0, and what a script may fetch besides the loss; the last is a summary."""
    with tf.Graph().as_default():
        x, y = v1.placeholder(tf.float32, [None, 2]), v1.placeholder(tf.float32, [None])
        w = v1.get_variable("w", initializer=tf.zeros([2, 1]))
        error = tf.matmul(x, w)[:, 0] - y
        loss = tf.reduce_mean(tf.square(error))
        (gradient,) = gradients([loss], [w])
        train = v1.train.GradientDescentOptimizer(0.05).apply_gradients([(gradient, w)])
        far = tf.abs(error) > 0.9
        made = [
            *(loss, tf.sqrt(loss), tf.exp(loss), tf.reduce_max(error), tf.math.reduce_std(error), tf.shape(x)[1]),
            *(tf.argmax(error), tf.reduce_all(far), tf.sort(error)[tf.size(error) // 2], tf.boolean_mask(error, far)),
            *(error, tf.nn.softmax(error), error[:, None] - error, tf.reduce_sum(tf.cast(far, tf.int32))),
            tf.norm(gradient) * tf.reduce_max(error),
        ]
        v1.summary.scalar("loss", loss)
        v1.summary.scalar("root", made[1])
        return x, y, w, train, made, v1.summary.merge_all()


def fetched(run, gradients):
    """What is fetched in each of eight steps, and the weights then. Targets of the first batch are 1 and -1."""
    x, y, w, train, made, summary = fetches(gradients)
    rows, targets = np.random.RandomState(0).randn(45, 2), np.random.RandomState(1).randn(45)
    targets[:6] = [1, -1, 1, 1, -1, 1]
    with v1.Session(graph=w.graph, config=CONFIG) as session:
        run(session, w.initializer)
        given = []
        for start in range(0, 45, 6):  # the last batch has three rows
            feed = {x: rows[start : start + 6], y: targets[start : start + 6]}
            _, numbers, text = run(session, [train, made, summary], feed)
            given.append([*numbers, *(each.simple_value for each in v1.Summary.FromString(text).value)])
        return given, run(session, w)


def test_what_is_no_mean_and_no_sum_is_fetched_of_the_whole_batch(monkeypatch):
    def rank(group):
        sessions = hfdt_sessions(group, lambda share: None, None)
        return fetched(
            lambda session, *args: sessions.run(BaseSession.run, session, *args),
            lambda ys, xs: sessions.gradients._taken(gradients_util._GradientsHelper, ys, xs),
        )

    alone, weights = fetched(BaseSession.run, gradients_util._GradientsHelper)
    for steps, mine in on_ranks(2, rank, monkeypatch):
        np.testing.assert_allclose(mine, weights, rtol=1e-5)
        for step, (numbers, numbers_) in enumerate(zip(steps, alone, strict=True)):
            for i, (one, other) in enumerate(zip(numbers, numbers_, strict=True)):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6, err_msg=f"step {step}, fetch {i}")


def test_what_is_whole_is_not_fetched_of_a_part_unless_it_computes_gradients():
    with tf.Graph().as_default():
        x, w = v1.placeholder(tf.float32, [None, 2]), v1.get_variable("w", initializer=[1.0, 2.0])
        sessions = hfdt_sessions(MemoryGroup(0, 1), lambda share: None, None)
        (gradient,) = sessions.gradients._taken(gradients_util._GradientsHelper, [tf.reduce_mean(x * w)], [w])
        top, of_both, mean = tf.reduce_max(x), tf.reduce_max(x * gradient), tf.reduce_mean(x)
    made = [top, of_both, mean]
    plan = FetchPlan(made, [], [], ancestors(made), False, False, [])
    sources, known = CellSources(plan, {x: X[:4]}, 4, sessions.gradients), TrialHistory()
    for tensor, kind in zip(made, [OutputKind.WHOLE, OutputKind.WHOLE, OutputKind.MEAN], strict=True):
        known.outputs[tensor.name, 0], known.sources[tensor.name, 0] = kind, sources.of(tensor, 1)[0]
    given = {(tensor.name, 0): np.float32(1) for tensor in made}
    assert [known.left_out(tensor, given) for tensor in made] == [True, False, False]
    assert known.whole(plan, {}) == [(top.name, 0), (of_both.name, 0)]
    assert not known.left_out(top, {})


def linear(sessions):
    """Return the batch, the weights, the loss and its gradient in the current graph."""
    x, w = v1.placeholder(tf.float32, [None, 2]), v1.get_variable("w", initializer=[1.0, 2.0])
    loss = tf.reduce_mean(x * w)
    (gradient,) = sessions.gradients._taken(gradients_util._GradientsHelper, [loss], [w])
    return x, w, loss, gradient


@pytest.mark.parametrize("reduce", [tf.reduce_mean, tf.reduce_max])
def test_a_number_that_waits_for_the_update_is_a_mean_or_refused(reduce, monkeypatch):
    def rank(group):
        sessions = hfdt_sessions(group, lambda share: None, None)
        with tf.Graph().as_default(), v1.Session(config=CONFIG) as session:
            x, w, loss, gradient = linear(sessions)
            with tf.control_dependencies([w.assign_sub(gradient)]):
                late = tf.identity(reduce(x), name="late")
            sessions.run(BaseSession.run, session, w.initializer)
            return sessions.run(BaseSession.run, session, late, {x: X[:4]})

    if reduce is tf.reduce_mean:
        assert on_ranks(2, rank, monkeypatch) == [pytest.approx(X[:4].mean())] * 2
    else:
        with pytest.raises(CaptureError, match="Received: late:0, which is none of these"):
            on_ranks(2, rank, monkeypatch)


def test_weights_that_are_read_in_no_order_beside_the_update_are_those_before_it(monkeypatch):
    """A penalty of which one rank read the weights before the update, and one after it, would be neither."""

    def rank(group):
        sessions = hfdt_sessions(group, lambda share: None, None)
        with tf.Graph().as_default(), v1.Session(config=CONFIG) as session:
            x, w, loss, gradient = linear(sessions)
            update = w.assign_sub(gradient)
            with tf.control_dependencies([update]):
                late = tf.identity(w.read_value())
            made = [tf.reduce_sum(w), w.value(), loss + tf.nn.l2_loss(w), late, loss]
            sessions.run(BaseSession.run, session, w.initializer)
            runs = [sessions.run(BaseSession.run, session, [update, *made], {x: X[:4]})[1:] for _ in range(3)]
        known = sessions._known[session.graph]
        return runs, [known.sources[tensor.name, 0].races for tensor in made]

    for runs, races in on_ranks(2, rank, monkeypatch):
        assert races == [True, True, True, False, False]
        before = np.array([1.0, 2.0])
        for total, value, penalized, after, loss in runs:
            assert [total, *value] == pytest.approx([before.sum(), *before])
            assert penalized == pytest.approx(loss + np.square(before).sum() / 2)
            before = before - X[:4].mean(0) / 2
            assert after == pytest.approx(before)


def test_a_reference_variable_that_is_fetched_itself_is_the_one_after_the_update():
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=[1.0, 2.0], use_resource=False)
        update, same, total = v1.assign_add(w, [1.0, 1.0]), w.read_value(), tf.reduce_sum(w)
    made = [update.op, w, same, total]
    plan = FetchPlan(made, [], [], ancestors([update, same, total]), False, True, [])
    sources = CellSources(plan, {}, 4, Gradients(None))
    assert [sources.of(tensor, 1)[0].races for tensor in (w.value(), same, total)] == [False, False, True]


def test_random_numbers_are_not_fetched_a_second_time():
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 2])
        top = tf.reduce_max(tf.nn.dropout(x, 0.5))
    runs, known = [np.float32(v) for v in (5.0, 5.0, 3.0, 5.0)], TrialHistory()
    plan = FetchPlan([top], [], [], ancestors([top]), True, False, [])
    sources = CellSources(plan, {x: X[:4]}, 4, Gradients(None))
    given = iter(runs)
    tried(
        plan, {x: X[:4]}, [2, 2], known, sources, lambda feeds, instead: ([next(given)], {}), list, lambda values: None
    )
    assert known.outputs == {(top.name, 0): OutputKind.MEAN}
    known.rows[plan] = {4}
    assert known.settled(plan, 4)
    assert not known.settled(plan, 5)


@pytest.mark.parametrize(
    ("found", "even", "first", "second"),
    [
        (OutputKind.MEAN, 2.0, 1.0, 3.0),
        (OutputKind.MEAN, 2.000001, 1.0, 3.0),
        (OutputKind.SUM, 4.0, 1.0, 3.0),
        (OutputKind.WHOLE, 2.001, 1.0, 3.0),
        (OutputKind.WHOLE, 3.0, 1.0, 3.0),
        (OutputKind.WHOLE, True, True, True),
        (OutputKind.SUM, 4, 1, 3),
        (OutputKind.WHOLE, 3, 3, 3),
        (None, 3, 0, 3),
        (None, 3.0, 0.0, 3.0),
        (None, 2.0, 2.0, 2.0),
        (None, 2.0, 1.99, 2.01),
        (None, np.nan, 1.0, 3.0),
        (OutputKind.SUM, [4.0, 1.0], [1.0, 0.0], [3.0, 1.0]),
        (None, [1.0, 1.0], [1.0, 0.0], [0.0, 1.0]),
        (OutputKind.ROWS, [1.0, 2.0, 3.0, 4.0], [1.0, 2.0], [3.0, 4.0]),
        (OutputKind.WHOLE, [1.0, 2.0, 3.0, 4.0], [1.0, 2.0], [2.0, 4.0]),
        (OutputKind.WHOLE, [[1, 2], [3, 4], [5, 6], [7, 8]], [[1], [3]], [[5], [7]]),
        (OutputKind.WHOLE, [1.0, 2.0, 3.0], [1.0], [2.0, 3.0]),
    ],
)
def test_what_halves_show_of_a_number(found, even, first, second):
    even, first, second = (np.asarray(each, np.float32 if "." in str(each) else None) for each in (even, first, second))
    assert exactly(even, [first, second], [2, 2]) is found


def test_several_batches_must_show_the_same_of_a_number():
    known, name = TrialHistory(), ("precision:0", 0)
    for kind in (OutputKind.MEAN, None, OutputKind.MEAN):
        known.found(name, kind)
        assert known.outputs[name] is OutputKind.WHOLE
    known.found(name, OutputKind.MEAN)
    assert known.outputs[name] is OutputKind.MEAN
    assert not known.open
    for kind in (OutputKind.MEAN, OutputKind.SUM):
        known.found(("other:0", 0), kind)
    assert known.outputs["other:0", 0] is OutputKind.WHOLE
    for kind, after in (
        (None, OutputKind.MEAN),
        (OutputKind.MEAN, OutputKind.MEAN),
        (OutputKind.SUM, OutputKind.WHOLE),
    ):
        known.found(name, kind)
        assert known.outputs[name] is after
    assert not known.open
