"""TensorFlow 1 sessions in replicated scripts: which runs are divided, how, and results equal to the script alone."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.client.session import BaseSession
from tensorflow.python.ops import gradients_util

from client_shim.replica.sessions import feeds as feeding
from client_shim.replica.sessions import patches
from client_shim.replica.sessions.gradients import GradientNode, Gradients
from client_shim.replica.sessions.plans import FetchPlan, flat_fetches
from fdt.errors import CaptureError
from hfdt.replica.session_outputs import Combining, OutputKind, how, read, reading
from hfdt.replica.session_sources import CellSources
from hfdt.replica.session_trials import TrialHistory, tried
from hfdt.replica.sessions import HfdtSessions
from hfdt.worker.step_context import Reading
from replica.exchange import GroupedExchange
from tests import in_process_comm
from tests.single.thread_groups import MemoryGroup


def hfdt_sessions(group, count, replicated):
    return HfdtSessions(group, GroupedExchange(group), count, replicated)


v1 = tf.compat.v1
CONFIG = v1.ConfigProto(inter_op_parallelism_threads=4, use_per_session_threads=True)
X = np.arange(22, dtype="float32").reshape(11, 2) / 10
WORDS = np.arange(11) % 4


class Graph:
    """A model with an embedding. `gradients(ys, xs)`: how they are taken."""

    def __init__(self, gradients, reduce, rows=None):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x, self.words = v1.placeholder(tf.float32, [rows, 2]), v1.placeholder(tf.int64, [rows])
            table = v1.get_variable("table", initializer=tf.ones([4, 2]))
            w = v1.get_variable("w", initializer=tf.constant([[0.5], [-0.5]]))
            self.rows = tf.matmul(self.x * tf.nn.embedding_lookup(table, self.words), w)[:, 0]
            self.loss = reduce(tf.square(self.rows - 1.0))
            self.count = tf.reduce_sum(tf.cast(self.rows > 0.1, tf.int32))
            v1.summary.scalar("loss", self.loss)
            self.summary = v1.summary.merge_all()
            pairs = zip(gradients([self.loss], [table, w]), [table, w], strict=True)
            self.train = v1.train.MomentumOptimizer(0.02, 0.9).apply_gradients(list(pairs))
            self.first, self.variables = v1.global_variables_initializer(), [table, w]


def trained(graph, run):
    """What is fetched in each of three steps, the last of one row, and the variables then."""
    with v1.Session(graph=graph.graph, config=CONFIG) as session:
        run(session, graph.first)
        fetched = [
            run(session, [graph.train, graph.loss, graph.count, graph.rows, graph.summary], feed)[1:]
            for feed in ({graph.x: X[a:b], graph.words: WORDS[a:b]} for a, b in ((0, 5), (5, 10), (10, 11)))
        ]
        return fetched, run(session, graph.variables)


def on_ranks(size, run, monkeypatch):
    """`run(group)` on threads, each of which takes itself for the script's."""
    monkeypatch.setattr(threading, "main_thread", threading.current_thread)
    return in_process_comm.on_ranks(size, lambda comm: run(MemoryGroup(comm.rank, size, comm)))


def as_rank(group, reduce, shares, rows=None, replicated=None):
    sessions = hfdt_sessions(group, shares.append, replicated)

    def run(session, fetches, feed=None):
        return sessions.run(BaseSession.run, session, fetches, feed)

    def gradients(ys, xs):
        return sessions.gradients._taken(gradients_util._GradientsHelper, ys, xs)

    return trained(Graph(gradients, reduce, rows), run)


@pytest.mark.parametrize("reduce", [tf.reduce_mean, tf.reduce_sum])
def test_divided_runs_give_what_one_gives(reduce, monkeypatch):
    shares = []
    alone, weights = trained(Graph(gradients_util._GradientsHelper, reduce), BaseSession.run)
    for fetched, mine in on_ranks(3, lambda group: as_rank(group, reduce, shares), monkeypatch):
        for one, other in zip(mine, weights, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
        for (loss, count, rows, summary), (loss_, count_, rows_, summary_) in zip(fetched, alone, strict=True):
            np.testing.assert_allclose(loss, loss_, rtol=1e-5)
            np.testing.assert_allclose(rows, rows_, rtol=1e-5)
            assert count == count_
            assert scalar(summary) == pytest.approx(scalar(summary_), rel=1e-5)
    assert sorted(shares) == sorted([(1, 5), (2, 5), (2, 5)] * 2 + [(0, 1), (0, 1), (1, 1)])


def test_a_training_run_without_a_batch_is_refused_on_two_ranks(monkeypatch):
    def train(group):
        sessions = hfdt_sessions(group, lambda share: None, None)
        with tf.Graph().as_default(), v1.Session() as session:
            w = tf.Variable([1.0, 2.0])
            (gradient,) = sessions.gradients._taken(gradients_util._GradientsHelper, tf.reduce_mean(w * w), [w])
            BaseSession.run(session, v1.global_variables_initializer())
            with pytest.raises(CaptureError, match="fed a batch of at least 2 rows. Received: none"):
                sessions.run(BaseSession.run, session, w.assign_sub(gradient), None)
        return True

    assert all(on_ranks(2, train, monkeypatch))


def scalar(text):
    return v1.Summary.FromString(text).value[0].simple_value


def test_what_ranks_find_differently_is_as_rank_0_has_it(monkeypatch):
    """A global step that is read in no order beside the update is 0 on one rank and 1 on another."""

    def rank(group):
        sessions = hfdt_sessions(group, lambda share: None, None)

        def gradients(ys, xs):
            return sessions.gradients._taken(gradients_util._GradientsHelper, ys, xs)

        graph = Graph(gradients, tf.reduce_mean)
        with graph.graph.as_default():
            read = v1.py_func(lambda: np.int64(3 * group.rank), [], tf.int64)
        with v1.Session(graph=graph.graph, config=CONFIG) as session:
            session.run(graph.first)
            fetches, feed = [graph.train, graph.loss, read], {graph.x: X[:5], graph.words: WORDS[:5]}
            return [sessions.run(BaseSession.run, session, fetches, feed)[1:] for _ in range(2)]

    first, second = on_ranks(2, rank, monkeypatch)
    assert first == second
    assert [step for _, step in first] == [0, 0]


def test_a_batch_fixed_in_the_graph_is_refused_or_done_by_every_rank(monkeypatch):
    with pytest.raises(CaptureError, match="any number of rows. Received: Placeholder"):
        on_ranks(2, lambda group: as_rank(group, tf.reduce_mean, [], rows=5), monkeypatch)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda x, w: tf.reduce_mean(x * w) + tf.reduce_sum(tf.square(x * w)), "mean or a sum"),
        (lambda x, w: tf.reduce_mean(tf.reshape(x, [4, 2]) * w), "fails on a part of a batch"),
    ],
)
def test_what_cannot_be_divided_is_named(loss, words, monkeypatch):
    def run(group):
        sessions = hfdt_sessions(group, lambda share: None, None)
        with tf.Graph().as_default(), v1.Session(config=CONFIG) as session:
            x, w = v1.placeholder(tf.float32, [None, 2]), v1.get_variable("w", initializer=[1.0, 2.0])
            (gradient,) = sessions.gradients._taken(gradients_util._GradientsHelper, [loss(x, w)], [w])
            sessions.run(BaseSession.run, session, w.initializer)
            sessions.run(BaseSession.run, session, w.assign_sub(gradient), {x: X[:4]})

    with pytest.raises(CaptureError, match=words):
        on_ranks(2, run, monkeypatch)


def test_what_is_neither_a_mean_nor_a_sum_is_done_whole_by_every_rank_each_time(monkeypatch):
    whole = []

    def run(group):
        sessions = hfdt_sessions(group, lambda share: None, lambda: whole.append(group.rank))
        with tf.Graph().as_default(), v1.Session(config=CONFIG) as session:
            x, w = v1.placeholder(tf.float32, [None, 2]), v1.get_variable("w", initializer=[1.0, 2.0])
            loss = tf.reduce_mean(x * w) + tf.reduce_sum(tf.square(x * w))
            (gradient,) = sessions.gradients._taken(gradients_util._GradientsHelper, [loss], [w])
            sessions.run(BaseSession.run, session, w.initializer)
            for _ in range(2):
                sessions.run(BaseSession.run, session, w.assign_sub(0.1 * gradient), {x: X[:4]})
            return session.run(w).tolist()

    on_ranks(2, run, monkeypatch)
    assert sorted(whole) == [0, 0, 1, 1]


def test_a_saved_graph_is_the_scripts_own():
    sessions = hfdt_sessions(MemoryGroup(0, 1), lambda share: None, None)
    with sessions.gradients.installed(), tf.Graph().as_default() as graph:
        w = v1.get_variable("w", initializer=2.0)
        assert "PyFunc" in {o.type for o in tf.gradients(w * w, w)[0].op.graph.get_operations()}
        definition = graph.as_graph_def()
    assert "PyFunc" not in {node.op for node in definition.node}
    with tf.Graph().as_default(), v1.Session() as session:
        (again,) = tf.import_graph_def(definition, return_elements=["fdt_gradients_0:0"], name="")
        session.run("w/Assign")
        assert session.run(again) == 4.0


def test_gradients_of_inputs_are_left_alone():
    sessions = hfdt_sessions(MemoryGroup(0, 1), lambda share: None, None)
    with sessions.gradients.installed(), tf.Graph().as_default():
        x, w = v1.placeholder(tf.float32, [None]), v1.get_variable("w", initializer=2.0)
        assert tf.gradients(x * w, x)[0].op.type != "PyFunc"
        (taken,) = tf.gradients(x * w * w, w)
        with pytest.raises(CaptureError, match="second-order gradients"):
            tf.gradients(taken, w)


def test_one_rank_draws_the_runs_numbers_trains_without_a_batch_and_refuses_other_ways_to_train():
    tf.random.set_seed(5)
    group = MemoryGroup(0, 1, in_process_comm.InProcessWorld(1).comm(0))
    drawn = []
    with patches.installed(hfdt_sessions(group, lambda share: None, None), rank=None):
        for _ in range(2):
            with tf.Graph().as_default(), v1.Session() as session:
                w = v1.get_variable("w", [3])
                train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(w * w))
                session.run(v1.global_variables_initializer())
                drawn.append(session.run(w))
                with pytest.raises(CaptureError, match="by make_callable cannot be divided"):
                    session.make_callable(train)
                session.run(train)  # without a batch: one rank divides nothing
                np.testing.assert_allclose(session.run(w), drawn[-1] * (1 - 0.2 / 3), rtol=1e-6)
        with pytest.raises(CaptureError, match="SyncReplicasOptimizer"):
            v1.train.SyncReplicasOptimizer(v1.train.GradientDescentOptimizer(0.1), 1)
    np.testing.assert_array_equal(*drawn)


def test_which_arrays_are_rows():
    with tf.Graph().as_default():
        x, y, weights = (v1.placeholder(tf.float32, shape) for shape in ([None, 2], None, [4]))
        feeds = feeding.arrays({x: X[:4], y: [1.0, 2.0, 3.0, 4.0], weights: np.ones(4), "rate": 0.1})
    assert feeding.rows_of(feeds) == 4
    assert feeding.fixed(feeds, 4).startswith("Placeholder")
    assert feeding.fixed({**feeds, weights: np.ones(3)}, 4) == ""
    part = feeding.between({**feeds, weights: np.ones(3)}, 4, 1, 3)
    assert [len(part[key]) for key in (x, y, weights)] == [2, 2, 3]


def test_how_numbers_of_parts_make_the_whole():
    mean, total = np.float32(2.0), np.int32(4)
    assert how(mean, [np.float32(1.0), np.float32(3.0)], [2, 2]) is OutputKind.MEAN
    assert how(mean, [np.float32(1.0), np.float32(2.5)], [1, 2]) is OutputKind.MEAN
    assert how(total, [np.int32(1), np.int32(3)], [2, 2]) is OutputKind.SUM
    assert how(total, [total, total], [2, 2]) is OutputKind.FIRST
    assert how(total * 0, [total * 0, total * 0], [2, 2]) is None
    assert how(np.zeros(5), [np.zeros(2), np.zeros(3)], [2, 3]) is OutputKind.ROWS
    one, two, three = (np.array([value]) for value in (1.0, 2.0, 3.0))
    assert reading(three, [one, two], [2, 2]) == (Reading.STEP_SUM, 0.0)
    assert reading(three, [one, one], [2, 2])[1] == pytest.approx(1 / 3)
    assert reading(two, [one, two, two], [2, 3, 3], Reading.MEAN) == (Reading.MEAN, pytest.approx(1 / 8))
    assert reading(three, [one, two], [2, 2], Reading.MEAN) == (Reading.MEAN, pytest.approx(1 / 2))
    assert reading(three, [one, one * np.nan], [2, 2]) == (Reading.MEAN, 1.0)
    assert reading(one * 0, [one, one], [2, 2], Reading.MEAN) == (Reading.MEAN, 0.0)


def test_ranks_numbers_make_the_whole_batchs():
    def fetched(comm):
        combining = Combining(GroupedExchange(MemoryGroup(comm.rank, 2, comm)), (1 + comm.rank, 3))
        rows = np.array([[1, 2], [3, 4]])[: 1 + comm.rank] + 10 * comm.rank
        return combining.whole(
            [np.float32(3 * comm.rank), np.int32(4 + comm.rank), np.int64(1), rows],
            [OutputKind.MEAN, OutputKind.FIRST, OutputKind.SUM, OutputKind.ROWS],
        )

    for mean, first, total, rows in in_process_comm.on_ranks(2, fetched):
        assert (mean, first, total, rows.tolist()) == (2.0, 4, 2, [[1, 2], [11, 12], [13, 14]])


def test_fetches_keep_their_structure():
    with tf.Graph().as_default() as graph:
        a, b = tf.constant(1), tf.constant(2)
        flat, build = flat_fetches(graph, {"one": a, "both": [a, b, a.op]})
    assert [each.name for each in flat] == ["Const:0", "Const_1:0", "Const"]
    assert build([1, 2, None]) == {"one": 1, "both": [1, 2, None]}


def test_the_nearer_of_mean_and_sum_is_it():
    first, second = np.array([1.0, 2.0]), np.array([3.0, -1.0])
    assert read((first + second) / 2 + 0.1, [first, second], [2, 2]) is Reading.MEAN
    assert read(first + second - 0.1, [first, second], [2, 2]) is Reading.STEP_SUM


def test_another_plans_gradients_do_not_settle_one_that_was_zero():
    known, plan = TrialHistory(), FetchPlan([], [GradientNode(1, [], ("",), [], [])], [], frozenset(), False, True, [])
    known.readings[0] = Reading.MEAN
    run = lambda feeds, instead: ([], {1: [np.zeros(2)]})  # noqa: E731
    tried(plan, {}, [2, 2], known, CellSources(plan, {}, 4, Gradients(None)), run, list, lambda values: None)
    assert not known.settled(plan, 4)
