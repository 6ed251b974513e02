"""How a replica's rank cuts batches, reads losses, and agrees on what the script reads."""

import numpy as np
import pytest
import tensorflow as tf

from client_shim.replica.sessions.gradients import Taken
from client_shim.replica.sessions.plans import Plan
from fdt.errors import CaptureError
from fdt.patches import patched
from hfdt import step as steps
from hfdt.comm.inprocess import InProcessComm, World
from hfdt.replica import called, kinds
from hfdt.replica.batches import cut, rows_of
from hfdt.replica.clipping import Clipping
from hfdt.replica.places import ReplicaStep
from hfdt.replica.probe import Found, Trials, read
from hfdt.replica.session_trials import Known, tried
from hfdt.replica.values import agree, take_gradient
from hfdt.step import Reading, Terms


@pytest.fixture
def step():
    """Of the only rank."""
    return ReplicaStep(Terms(InProcessComm(World(1), 0), own_step=False), tf.constant([4, 9], tf.int64))


def test_arrays_of_a_batch_are_cut_and_other_arguments_are_not():
    given = (np.arange(9), {"y": tf.range(9), "rate": 0.1, "table": np.zeros(4)})
    assert rows_of(given) == 9
    parts = [cut(given, 9, rank, 2) for rank in range(2)]
    assert [share for _, share in parts] == [(4, 9), (5, 9)]
    np.testing.assert_array_equal(np.concatenate([part[0] for part, _ in parts]), np.arange(9))
    np.testing.assert_array_equal(np.concatenate([part[1]["y"] for part, _ in parts]), np.arange(9))
    assert parts[0][0][1]["rate"] == 0.1
    assert len(parts[0][0][1]["table"]) == 4


def test_a_rank_without_rows_works_on_one_that_does_not_count():
    (part,), share = cut((np.arange(2),), 2, 0, 3)
    assert len(part) == 1
    assert share == (0, 2)


def test_the_nearer_of_mean_and_sum_is_it():
    first, second = np.array([1.0, 2.0]), np.array([3.0, -1.0])
    assert read((first + second) / 2 + 0.1, first, second) is Reading.MEAN
    assert read(first + second - 0.1, first, second) is Reading.STEP_SUM


@pytest.mark.parametrize(("reduce", "reading"), [(tf.reduce_mean, Reading.MEAN), (tf.reduce_sum, Reading.STEP_SUM)])
def test_a_step_function_is_tried_and_its_variables_stay(reduce, reading):
    trials = Trials()
    weight, calls = tf.Variable([1.0, 2.0]), tf.Variable(0)

    @tf.function
    def step(x, y):
        calls.assign_add(1)
        with tf.GradientTape() as tape:
            loss = reduce((tf.linalg.matvec(x, weight) - y) ** 2)
        trials.recorded.append([tape.gradient(loss, weight)])  # what a rank does in place of the optimizer's apply
        return loss, weight[0]

    x = np.random.default_rng(0).normal(size=(7, 2)).astype("float32")
    found = trials.probe(step, (x, x[:, 0]), {}, 7)
    assert found.gradients == (reading,)
    assert found.outputs == (reading, Reading.MEAN)
    assert int(calls) == 0


def test_what_differs_is_averaged_by_share_and_counts_are_added():
    shares = np.array([0.25, 0.75])
    assert agree(np.array([1.0, 3.0]), shares, tf.float32, divided=True) == 2.5
    assert agree(np.array([1.0, 3.0]), shares, tf.int32, divided=True) == 4
    assert agree(np.array([1.0, 3.0]), shares, tf.int32, divided=False) == 1
    assert agree(np.array([1.0, 0.0]), shares, tf.bool, divided=True) == 1


def test_another_plans_gradients_do_not_settle_one_that_was_zero():
    known, plan = Known(), Plan([], [Taken(1, [], ("",), [], [])], [], frozenset(), False, True, [])
    known.readings[0] = Reading.MEAN
    run = lambda feeds, instead: ([], {1: [np.zeros(2)]})  # noqa: E731
    tried(plan, {}, 4, known, run, list, lambda values: None)
    assert not known.settled(plan)


class Trying:
    """Trials that found this."""

    def __init__(self, outputs):
        self.found = lambda *_: Found(outputs=outputs)


@tf.function
def taking(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_mean(x)
    return loss, tf.reduce_sum(x), tape.gradient(loss, x)[0]


def test_gradients_that_a_function_returns_are_read_as_all_that_is_beside_them(step):
    x = tf.ones([4, 3])
    with kinds.followed(), steps.entered(step):
        kinds.enter(x, (4, 9))
        for outputs, reading in (
            ((Reading.MEAN, None), Reading.MEAN),
            ((Reading.STEP_SUM, Reading.STEP_SUM), Reading.STEP_SUM),
        ):
            called.call(Trying(outputs), taking, (x,), {}, lambda: taking(x))
            assert step.reading is reading
        with pytest.raises(CaptureError, match="Received: both"):
            called.call(Trying((Reading.MEAN, Reading.STEP_SUM)), taking, (x,), {}, lambda: taking(x))


def test_a_second_gradient_of_a_loss_is_read_as_the_first(step):
    x, first, second = tf.ones([4, 3]), tf.Variable([1.0, 2.0, 3.0]), tf.Variable(2.0)
    with kinds.followed(), steps.entered(step):
        kinds.enter(x, (4, 9))
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(x * first) * second
        for variable in (first, second):
            take_gradient(tf.GradientTape.gradient, tape, loss, variable)
            assert step.reading is Reading.STEP_SUM
        assert float(loss) == 48.0
        take_gradient(tf.GradientTape.gradient, tape, tf.reduce_mean(x), first)
        assert step.reading is Reading.MEAN


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    "clip",
    [
        lambda gradients: tf.clip_by_global_norm(gradients, 1.0)[0],
        lambda gradients: [tf.clip_by_norm(t=each, clip_norm=1.0) for each in gradients],
        lambda gradients: [tf.clip_by_value(each, -1.0, 1.0) for each in gradients],
        lambda gradients: tf.linalg.global_norm(gradients),
    ],
)
def test_gradients_that_are_clipped_before_they_are_added_are_named_once(step, clip, graph, capsys):
    weight = tf.Variable([1.0, 2.0, 3.0])

    def train():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.ones([4, 3]) * weight)
        return clip(take_gradient(tf.GradientTape.gradient, tape, loss, [weight]))

    with patched(Clipping().patches()), steps.entered(step):
        tf.clip_by_value(weight, -1.0, 1.0)
        tf.clip_by_norm(tf.ones([3]), 1.0)
        assert capsys.readouterr().err == ""
        for _ in range(2):
            tf.function(train)() if graph else train()
        said = capsys.readouterr().err
    assert said.count("hfdt: gradients are clipped") == 1
    assert f"at {__file__}:" in said
