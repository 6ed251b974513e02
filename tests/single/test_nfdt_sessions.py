"""TensorFlow 1 sessions under NFDT: the worker whose turn a run is, the server's update, and refused runs."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.client.session import BaseSession
from tensorflow.python.ops import gradients_util
from tensorflow.python.training.optimizer import Optimizer

from client_shim.replica.sessions.feeds import SessionCall
from fdt.errors import CaptureError
from fdt.process_group.peer import PeerGroup
from fdt.process_group.root import RootGroup
from nfdt import algorithms
from nfdt.replica import agreed_values
from nfdt.replica.exchange import OptimizerExchange
from nfdt.replica.session_optimizers import Optimizers, inspected
from nfdt.replica.session_server import SessionGradients, as_taken, dense, packed, unpacked
from nfdt.replica.sessions import NfdtSessions

v1 = tf.compat.v1
CONFIG = v1.ConfigProto(inter_op_parallelism_threads=2, use_per_session_threads=True)
X = np.arange(24, dtype="float32").reshape(12, 2) / 10
WORDS = np.arange(12) % 4
WAIT_S = 60


class Graph:
    """An embedding and a matrix. `sessions`: None: as the script alone has it."""

    def __init__(self, sessions=None, optimizer=v1.train.GradientDescentOptimizer, rows=None, clip=False):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x, self.words = v1.placeholder(tf.float32, [rows, 2]), v1.placeholder(tf.int64, [rows])
            self.rate = v1.placeholder(tf.float32, [])
            table = v1.get_variable("table", initializer=tf.ones([4, 2]))
            w = v1.get_variable("w", initializer=tf.constant([[0.5], [-0.5]]))
            self.rows = tf.matmul(self.x * tf.nn.embedding_lookup(table, self.words), w)[:, 0]
            self.loss = tf.reduce_mean(tf.square(self.rows - 1.0))
            gradients = _gradients(sessions, [self.loss], [table, w])
            self.norm = tf.linalg.global_norm(gradients)
            if clip:
                gradients, self.norm = tf.clip_by_global_norm(gradients, 0.5)
            self.step = v1.train.get_or_create_global_step()
            self.train = _applied(sessions, optimizer(self.rate), zip(gradients, [table, w], strict=True), self.step)
            with tf.control_dependencies([self.train]):
                self.late = tf.identity(self.loss)
            self.first, self.variables = v1.global_variables_initializer(), [table, w]


def _gradients(sessions, ys, xs):
    helper = gradients_util._GradientsHelper
    return helper(ys, xs) if sessions is None else sessions.gradients._taken(helper, ys, xs)


def _applied(sessions, optimizer, pairs, step=None):
    if sessions is None:
        return optimizer.apply_gradients(list(pairs), global_step=step)
    given = {"grads_and_vars": pairs, "global_step": step}  # scripts name the arguments, or do not
    return sessions.optimizers.apply_gradients(Optimizer.apply_gradients, optimizer, **given)


def runner(sessions):
    """Session.run, as the script alone or as a worker has it."""
    if sessions is None:
        return BaseSession.run
    return lambda session, fetches, feed=None: sessions.run(BaseSession.run, session, fetches, feed)


def trained(graph, run, finish=lambda: None):
    """What is fetched in each of six runs, the last of a partial batch, and the variables then."""
    with v1.Session(graph=graph.graph, config=CONFIG) as session:
        run(session, graph.first)
        fetched = []
        for a, b in ((0, 3), (3, 6), (6, 9), (9, 12), (0, 3), (3, 5)):
            feed = {graph.x: X[a:b], graph.words: WORDS[a:b], graph.rate: 0.2 / (1 + a)}
            fetched.append(run(session, [graph.train, graph.loss, graph.rows, graph.late, graph.norm], feed)[1:])
        finish()
        return fetched, run(session, [*graph.variables, graph.step])


def one(tmp_path, rule=None, replicated=None, size=1):
    """Rank 0 of `size` workers, of whom no other comes."""
    host = RootGroup(tmp_path, size, lambda: None)
    return host, NfdtSessions(host, rule, lambda: [], replicated)


@pytest.fixture
def alone(tmp_path):
    """NfdtSessions of a run of one worker."""
    host, sessions = one(tmp_path)
    yield sessions
    host.close()


@pytest.mark.parametrize(
    ("optimizer", "clip"),
    [
        (v1.train.GradientDescentOptimizer, True),
        (lambda rate: v1.train.MomentumOptimizer(rate, 0.9, use_nesterov=True), False),
        (v1.train.AdamOptimizer, True),
        (lambda rate: v1.train.RMSPropOptimizer(rate, momentum=0.5, centered=True), False),
        (v1.train.AdagradOptimizer, False),
    ],
)
def test_one_worker_trains_as_the_script_alone(alone, optimizer, clip):
    expected, weights = trained(Graph(None, optimizer, clip=clip), BaseSession.run)
    given, mine = trained(Graph(alone, optimizer, clip=clip), runner(alone), alone.meet)
    for a, b in zip(given, expected, strict=True):
        for one_, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one_, other, rtol=1e-5)
    for a, b in zip(mine, weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert mine[-1] == 6
    assert (alone.steps, alone.samples) == (6, 17)


def pair(tmp_path, rule, work):
    """`work(sessions)` of two workers, threads of this process."""
    host = RootGroup(tmp_path, 2, lambda: None)
    results = [None, None]
    of_host = NfdtSessions(host, rule, host.pushes, None)
    host.serve_by(of_host.serve)

    def peer():
        mine = PeerGroup(tmp_path, 1, 2)
        try:
            results[1] = work(NfdtSessions(mine, rule, lambda: [], None))
        finally:
            mine.close()

    thread = threading.Thread(target=peer)
    thread.start()
    try:
        results[0] = work(of_host)
    finally:
        thread.join(WAIT_S)
        host.close()
    return results


@pytest.mark.parametrize(
    ("rule", "optimizer"), [("asgd", v1.train.GradientDescentOptimizer), ("ddc_asgd", v1.train.AdamOptimizer)]
)
def test_two_workers_take_runs_in_turn_and_end_with_the_same_variables(tmp_path, monkeypatch, rule, optimizer):
    monkeypatch.setattr(threading, "main_thread", threading.current_thread)
    monkeypatch.setattr(agreed_values, "script_frames", lambda: ())  # other callers, as threads

    def work(sessions):
        trained(Graph(sessions, optimizer), runner(sessions), sessions.meet)
        return *trained(Graph(sessions, optimizer), runner(sessions), sessions.meet), sessions

    (mine, weights, first), (theirs, others, second) = pair(tmp_path, rule, work)
    assert [(s.steps, s.samples) for s in (first, second)] == [(6, 18), (6, 16)]
    assert len(first.taus) == 12
    assert weights[-1] == others[-1] == 6  # the global step: each batch was applied once
    for a, b in zip(weights, others, strict=True):
        np.testing.assert_array_equal(a, b)
    for given, turn in ((mine, 0), (theirs, 1)):
        for number in (2, 3, 4):
            if number % 2 != turn:  # of the other's runs it reads what its own gave last, as long as the batch
                np.testing.assert_array_equal(given[number][1], given[number - 1][1])
        assert [len(rows) for _, rows, _, _ in given] == [3, 3, 3, 3, 3, 2]
    for number, (loss, _, late, norm) in enumerate(mine):  # rank 1 reads rank 0's numbers
        assert (theirs[number][0], theirs[number][2:]) == (loss, [late, norm])
        assert number % 2 == 0 or loss == mine[number - 1][0]
    assert mine[1][0] == mine[1][2]


def test_a_push_is_applied_by_the_scripts_own_update_with_its_learning_rate_scaled(tmp_path):
    host, sessions = one(tmp_path, "staleness_aware", size=3)
    with tf.Graph().as_default() as graph, v1.Session(config=CONFIG) as session:
        x, rate = v1.placeholder(tf.float32, [None]), v1.placeholder(tf.float32, [])
        w = v1.get_variable("w", initializer=[1.0, 2.0])
        gradients = _gradients(sessions, [tf.reduce_mean(x) * tf.reduce_sum(w)], [w])
        train = _applied(sessions, v1.train.AdagradOptimizer(rate, 1.0), zip(gradients, [w], strict=True))
        run = runner(sessions)
        run(session, v1.global_variables_initializer())
        asked = sessions._plans.asked(session, train, {x: [1.0], rate: 0.5})
        step = sessions._steps.of(asked[0], graph)
        call, given = SessionCall(BaseSession.run, session), np.array([2.0, 0.0], "float32")
        accumulated, expected = 1.0, 1.0
        for worker, tau in ((0, 0), (1, 1), (2, 2)):
            (sent,), _ = sessions._server.apply(call, step, SessionGradients(worker, [given], 1), {rate: 0.5})
            accumulated += 4.0
            expected -= 0.5 / max(tau, 1) * 2.0 / accumulated**0.5
            np.testing.assert_allclose(sent, [expected, 2.0], rtol=1e-6)
    assert sessions.taus == [0, 1, 2]
    host.close()


@pytest.mark.parametrize("nesterov", [None, False, True])
def test_a_rules_momentum_takes_the_place_of_the_optimizers(tmp_path, nesterov):
    pushes = [np.array(g, "float32") for g in ([1.0, -1.0], [0.5, 3.0], [-2.0, 0.5])]
    expected = by_adam(pushes) if nesterov is None else by_momentum(pushes)
    host, sessions = one(tmp_path, "ddc_asgd", size=2)
    with tf.Graph().as_default() as graph, v1.Session(config=CONFIG) as session:
        x, w = v1.placeholder(tf.float32, [None]), v1.get_variable("w", initializer=[1.0, 2.0])
        gradients = _gradients(sessions, [tf.reduce_mean(x) * tf.reduce_sum(w)], [w])
        optimizer = v1.train.AdamOptimizer(0.1)
        if nesterov is not None:
            optimizer = v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=nesterov)
        train = _applied(sessions, optimizer, zip(gradients, [w], strict=True))
        runner(sessions)(session, v1.global_variables_initializer())
        step = sessions._steps.of(sessions._plans.asked(session, train, {x: [1.0]})[0], graph)
        for push, now in zip(pushes, expected, strict=True):  # rank 0's, without delay: only its own momentum
            (sent,), _ = sessions._server.apply(
                SessionCall(BaseSession.run, session), step, SessionGradients(0, [push], 1), {}
            )
            np.testing.assert_allclose(sent, now, rtol=1e-4)
        assert np.any(sessions._server._sent(SessionCall(BaseSession.run, session), step, 1)[0] != sent)  # a look-ahead
    host.close()


def by_momentum(gradients):
    """[1, 2] after each step of SGD with momentum 0.9, rate 0.1."""
    w, v, seen = np.array([1.0, 2.0]), 0.0, []
    for g in gradients:
        v = 0.9 * v + g
        w = w - 0.1 * v
        seen.append(w)
    return seen


def by_adam(gradients):
    """[1, 2] after each step of Adam with rate 0.1 (Kingma and Ba 2014, the order at the end of section 2)."""
    w, m, v, seen = np.array([1.0, 2.0]), 0.0, 0.0, []
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - 0.1 * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t) * m / (v**0.5 + 1e-8)
        seen.append(w)
    return seen


def clipped(tmp_path, rule, watched):
    """The variables after eight runs that clip. `watched`: is the norm fetched behind the update?"""
    tmp_path.mkdir()
    host, sessions = one(tmp_path, rule)
    graph = Graph(sessions, clip=True)
    with graph.graph.as_default(), tf.control_dependencies([graph.train]):
        late = tf.identity(graph.norm)
    with v1.Session(graph=graph.graph, config=CONFIG) as session:
        run = runner(sessions)
        run(session, graph.first)
        for number in range(8):
            feed = {graph.x: (1.0 + number) * X[:6], graph.words: WORDS[:6], graph.rate: 0.1}
            run(session, [graph.train, late] if watched else graph.train, feed)
        weights = session.run(graph.variables)
    host.close()
    return weights


def test_a_norm_that_is_fetched_behind_the_update_leaves_it_as_it_is(tmp_path):
    rule = "dc_asgd_k(mu=0.9)"
    watched, plain = (clipped(tmp_path / name, rule, name == "watched") for name in ("watched", "plain"))
    for a, b in zip(watched, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_rule_begins_anew_where_variables_get_first_values_and_with_what_all_hold_when_they_have_met(tmp_path):
    host, sessions = one(tmp_path, "dc_asgd", size=2)
    with tf.Graph().as_default() as graph, v1.Session(config=CONFIG) as session:
        x, rate = v1.placeholder(tf.float32, [None]), v1.get_variable("rate", initializer=0.1, trainable=False)
        w = v1.get_variable("w", initializer=[1.0, 2.0])
        gradients = _gradients(sessions, [tf.reduce_mean(x) * tf.reduce_sum(w)], [w])
        train = _applied(sessions, v1.train.GradientDescentOptimizer(rate), zip(gradients, [w], strict=True))
        first, slower, run = v1.global_variables_initializer(), v1.assign(rate, 0.05).op, runner(sessions)
        run(session, first)
        step = sessions._steps.of(sessions._plans.asked(session, train, {x: [1.0]})[0], graph)

        def pushed(worker):
            push = SessionGradients(worker, [np.ones(2, "float32")], 1)
            sessions._server.apply(SessionCall(BaseSession.run, session), step, push, {})
            return sessions.taus[-1]

        assert [pushed(worker) for worker in (0, 0, 1)] == [0, 0, 2]
        run(session, slower)
        assert [pushed(worker) for worker in (0, 1)] == [1, 1]  # goes on
        sessions._server.met()
        assert [pushed(worker) for worker in (0, 1, 0)] == [0, 1, 1]  # the elastic worker holds what all left with
        run(session, first)
        assert [pushed(worker) for worker in (0, 1)] == [0, 1]
    host.close()


def refused(sessions, build, feed=None):
    """`build(x, w)`: what is run, with rows for `x`."""
    with tf.Graph().as_default(), v1.Session(config=CONFIG) as session:
        x, w = v1.placeholder(tf.float32, [None, 2]), v1.get_variable("w", initializer=[1.0, 2.0])
        fetches = build(x, w)
        run = runner(sessions)
        run(session, v1.global_variables_initializer())
        run(session, fetches, {x: X[:4]} if feed is None else feed)


def _gradient(sessions, x, w):
    return _gradients(sessions, [tf.reduce_mean(x * w)], [w])


def _sgd():
    return v1.train.GradientDescentOptimizer(0.1)


def _in_a_branch(sessions, x, w):
    (gradient,) = _gradient(sessions, x, w)
    return tf.cond(gradient[0] > -1.0, lambda: v1.assign_sub(w, gradient), lambda: v1.assign_sub(w, gradient))


def _one_after_the_other(sessions, x, w):
    other = v1.get_variable("other", initializer=[1.0, 2.0])
    first = _applied(sessions, _sgd(), [(_gradient(sessions, x, other)[0], other)])
    with tf.control_dependencies([first]):
        return _applied(sessions, _sgd(), [(_gradient(sessions, x, w)[0], w)])


def _behind_the_loss(sessions, x, w):
    gradients = _gradient(sessions, x, w)
    with tf.control_dependencies([tf.reduce_mean(x * w)]):
        return _applied(sessions, _sgd(), [(gradients[0], w)])


def _gated(sessions, x, w):
    return _applied(sessions, _sgd(), zip(v1.tuple(_gradient(sessions, x, w)), [w], strict=True))


def _by_hand_from_fetched(sessions, x, w):
    (gradient,) = _gradient(sessions, x, w)
    runner(sessions)(v1.get_default_session(), v1.global_variables_initializer())
    given = runner(sessions)(v1.get_default_session(), gradient, {x: X[:4]})
    fed = v1.placeholder(tf.float32, [2])
    runner(sessions)(v1.get_default_session(), v1.assign_sub(w, 0.1 * fed), {fed: given})


def _late_behind_a_batch(sessions, x, w):
    batch = v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(X).batch(4)).get_next()
    train = _applied(sessions, _sgd(), [(_gradient(sessions, batch, w)[0], w)])
    with tf.control_dependencies([train, batch]):
        return [train, tf.identity(w)]


def _uncollected(sessions, x, w):
    counted = v1.Variable(0.0, trainable=False, collections=[])
    train = _applied(sessions, _sgd(), [(_gradient(sessions, x, w)[0], w)])
    return [train, v1.assign_add(counted, 1.0)]


@pytest.mark.parametrize(
    ("rule", "words", "build"),
    [
        ("asgd", "compute and apply gradients in one run.*GradientDescentOptimizer's update", lambda s, x, w:
            _applied(s, _sgd(), [(x[0], w)])),
        ("asgd", "compute and apply gradients in one run.*an update of w without an optimizer", _by_hand_from_fetched),
        ("asgd", "by gradients only. Received: AssignSub", lambda s, x, w:
            [w.assign_sub(_gradient(s, x, w)[0]), v1.assign_sub(w, x[0])]),
        ("asgd", "inside tf.cond.*Received: ", _in_a_branch),
        ("asgd", "gradients of w that are computed after a change of variables", _one_after_the_other),
        ("asgd", "depends on Placeholder:0", _behind_the_loss),
        ("asgd", "depends on Placeholder:0", _gated),
        ("asgd", "depends on IteratorGetNext:0", _late_behind_a_batch),
        ("asgd", "in their graph's collections.*Received: Variable,", _uncollected),
        ("dana_dc", "with its own momentum can replace.*Received: MomentumOptimizer", lambda s, x, w:
            _applied(s, v1.train.MomentumOptimizer(0.1, 0.9), [(2 * _gradient(s, x, w)[0], w)])),
        ("dana_dc", "this algorithm needs SGD. Received: Adagrad", lambda s, x, w:
            _applied(s, v1.train.AdagradOptimizer(0.1), [(_gradient(s, x, w)[0], w)])),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_in_turn_is_named(tmp_path, rule, words, build):
    host, sessions = one(tmp_path, rule, size=2)
    with pytest.raises(CaptureError, match=words):
        refused(sessions, lambda x, w: build(sessions, x, w))
    host.close()


@pytest.mark.parametrize("allowed", [False, True])
def test_a_run_without_a_batch_is_refused_or_done_by_every_worker(tmp_path, allowed):
    done = []
    host, sessions = one(tmp_path, replicated=(lambda: done.append(1)) if allowed else None)

    def build(x, w):
        (gradient,) = _gradients(sessions, [tf.reduce_sum(w * w)], [w])
        return _applied(sessions, v1.train.GradientDescentOptimizer(0.1), [(gradient, w)])

    if allowed:
        refused(sessions, build, {})
    else:
        with pytest.raises(CaptureError, match="must be fed a batch, .* Received: none"):
            refused(sessions, build, {})
    host.close()
    assert done == [1] * allowed


def test_an_embeddings_rows_are_added_and_only_touched_rows_go_back():
    values, indices = np.array([[1.0], [2.0], [4.0]], "float32"), np.array([3, 0, 3])
    whole, other = dense([values, indices, np.ones(2, "float32")], ["values", "indices", ""], [[4, 1], [2]])
    np.testing.assert_array_equal(whole.ravel(), [2, 0, 0, 5])
    back = as_taken([whole, other], ["values", "indices", ""], [np.float32, np.int64, np.float32])
    np.testing.assert_array_equal(back[0].ravel(), [2, 5])
    np.testing.assert_array_equal(back[1], [0, 3])
    again = unpacked(packed([whole, other]), [[4, 1], [2]])
    np.testing.assert_array_equal(again[0], whole)
    assert packed([np.ones(1), other]).dtype == np.float64


def test_the_global_step_of_an_eager_optimizer_is_a_workers_own_until_all_meet(tmp_path):
    host, peer = RootGroup(tmp_path, 2, lambda: None), PeerGroup(tmp_path, 1, 2)

    def made(process_group, poll):
        w, step, optimizer = tf.Variable([1.0]), tf.Variable(0, dtype=tf.int64), v1.train.GradientDescentOptimizer(0.1)

        def apply(gradients, variables):
            optimizer.apply_gradients(zip(gradients, variables, strict=True), step)

        noted = Optimizers()
        noted.apply_gradients(lambda *_, **__: None, optimizer, [], step)
        return (
            OptimizerExchange(0, inspected(optimizer), [w], algorithms.make("asgd"), process_group, poll),
            apply,
            w,
            step,
        )

    mine, apply, w, step = made(host, lambda *_: host.pushes())
    theirs, unused, other, counted = made(peer, None)
    host.serve_by(lambda push: mine.serve(apply, push))
    mine.step(apply, [tf.constant([1.0])], [w])

    def work():
        for _ in range(3):
            theirs.step(unused, [tf.constant([1.0])], [other])
        peer.broadcast(0, "end")

    thread = threading.Thread(target=work)
    thread.start()
    host.broadcast(0, "end")
    thread.join(WAIT_S)
    peer.close()
    host.close()
    assert (int(counted), int(step)) == (3, 1)
    mine.meets()
    assert int(step) == 4, "of all updates"
    assert all(a is b for a, b in zip(theirs.held, (other, counted), strict=True))
    np.testing.assert_allclose(other.numpy(), w.numpy())
