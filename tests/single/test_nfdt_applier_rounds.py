"""The TensorFlow applier where a push is held: clipping, scalar weights, and variables without gradient in a flush."""

import keras
import numpy.testing as npt
import pytest
import tensorflow as tf
import tf_keras

from nfdt import algorithms
from nfdt.algorithm import AlgorithmUpdate
from nfdt.server.algorithm_state import AlgorithmState
from nfdt.server.applier import ModelApplier
from nfdt.transport import WorkerGradient
from nfdt.tree import leaves
from tests.single.test_nfdt_applier import part_of, push

BOTH_KERAS = pytest.mark.parametrize("lib", [keras, tf_keras], ids=["keras", "tf_keras"])
CLIPS = ["clipnorm", "clipvalue", "global_clipnorm"]


def core_of(name, optimizer, values, workers=2, dtype="float32"):
    applier = ModelApplier(part_of(optimizer, values, dtype=dtype))
    core = AlgorithmState(algorithms.make(name), applier, workers)
    for worker in range(workers):
        core.pull(worker)
    return core, applier


@pytest.mark.parametrize("clip", CLIPS)
@BOTH_KERAS
def test_each_push_of_a_round_is_clipped(clip, lib):
    optimizer = lib.optimizers.SGD(1.0, momentum=0.9, **{clip: 1.0})
    core, applier = core_of("group_sync", optimizer, [[0.0, 0.0]])
    push(core, 0, 1, [[100.0, 0.0]])
    push(core, 1, 1, [[0.0, 100.0]])
    npt.assert_allclose(applier.params[0], [-0.5, -0.5], rtol=1e-6)


@pytest.mark.parametrize("clip", CLIPS)
@BOTH_KERAS
def test_a_push_of_a_round_that_a_flush_ends_is_clipped(clip, lib):
    core, applier = core_of("group_sync", lib.optimizers.SGD(1.0, momentum=0.9, **{clip: 1.0}), [[0.0, 0.0]])
    push(core, 0, 1, [[100.0, 0.0]])
    core.flush()
    npt.assert_allclose(applier.params[0], [-1.0, 0.0], rtol=1e-6)


def test_a_global_norm_is_that_of_all_variables_of_a_push():
    core, applier = core_of("group_sync", keras.optimizers.Adam(1.0, global_clipnorm=5.0), [[0.0], [0.0]])
    push(core, 0, 1, [[30.0], [40.0]])
    npt.assert_allclose([mean.numpy() for mean in core.shared.held[0].mean], [[3.0], [4.0]], rtol=1e-6)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", algorithms.names())
def test_nothing_is_clipped_twice_and_nothing_is_left_out(name, workers, monkeypatch):
    """Where the momentum is the algorithm's, each push is clipped once, and the optimizer's clipping is off."""
    rule = algorithms.make(name)
    optimizer = keras.optimizers.SGD(1.0, momentum=0.5, clipnorm=1.0)
    clip, clipped = optimizer._clip_gradients, []
    monkeypatch.setattr(optimizer, "_clip_gradients", lambda grads: clipped.append(optimizer.clipnorm) or clip(grads))
    core, _ = core_of(name, optimizer, [[0.0]], workers)
    own = rule.own_momentum is not None and rule.own_momentum(core.shared)
    updates = momenta_of(rule, core, monkeypatch)
    for worker in range(workers):
        before = len(clipped)
        push(core, worker, 1, [[100.0]])
        assert not own or [each for each in clipped[before:] if each] in ([1.0], []), "traced once a program"
    core.flush()
    assert set(updates) == ({"algorithm"} if own else {"captured"})
    assert not own or any(clipped)


def momenta_of(rule, core, monkeypatch):
    """The list to which each of the algorithm's updates from now on adds its `momentum`."""
    seen, made = [], AlgorithmUpdate.__init__

    def init(self, *args, **more):
        made(self, *args, **more)
        seen.append(self.momentum)

    monkeypatch.setattr(AlgorithmUpdate, "__init__", init)
    return seen


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", algorithms.names())
def test_a_scalar_weight_has_its_own_precision(name, dtype):
    """A weight of shape () and one of shape (1,) get the same gradients, and the same updates to the last bit.

    Scalars of the server (samples, tau, mu) are float32; averages of three and more pushes mix them with the weights.
    """
    core, applier = core_of(name, keras.optimizers.SGD(0.1, momentum=0.5), [1.0, [1.0]], workers=4, dtype=dtype)
    for number in (1, 2, 3):
        for worker in range(4):
            core.pull(worker)
        for worker in range(4):
            slope = tf.constant(1 / (3 + worker), dtype)
            core.push(worker, number, WorkerGradient([slope, slope[None]], 1 + worker, seconds=0.1, batches=(0,)))
    core.flush()
    scalar, vector = applier.params
    assert scalar.dtype == vector.dtype == dtype and scalar != 1.0
    assert {leaf.dtype.name for leaf in leaves(core.shared)} <= {dtype, "float32"}
    npt.assert_array_equal(scalar.numpy(), vector.numpy()[0])


HOLDING = ["ssgd", "k_sync(k=2)", "rennala", "malenia", "ringleader", "group_sync", 'group_sync(momentum="captured")']


@pytest.mark.parametrize("name", HOLDING)
@BOTH_KERAS
def test_a_flush_leaves_a_variable_without_gradient_alone(name, lib):
    """Weight decay would change it. Workers push one of a round of two, and a flush ends it."""
    core, applier = core_of(name, lib.optimizers.AdamW(0.1, weight_decay=0.5), [[1.0], [1.0]])
    push(core, 0, 1, [[1.0], None])
    assert core.flush()
    npt.assert_array_equal(applier.params[1], [1.0])
    assert applier.params[0] != 1.0


@pytest.mark.parametrize("name", HOLDING)
def test_the_last_push_of_an_update_may_lack_a_gradient_that_another_one_has(name):
    core, applier = core_of(name, keras.optimizers.SGD(1.0), [[1.0], [1.0], [1.0]])
    push(core, 0, 1, [[1.0], [1.0], None])
    push(core, 1, 1, [[1.0], None, None])
    npt.assert_array_equal(applier.params, [[0.0], [0.5], [1.0]])


def test_an_update_of_a_single_push_leaves_a_variable_alone_that_the_push_lacks():
    """The optimizer would move it by its momentum and its weight decay."""
    core, applier = core_of(
        "ssgd", keras.optimizers.SGD(1.0, momentum=0.5, weight_decay=0.5), [[1.0], [1.0]], workers=1
    )
    push(core, 0, 1, [[1.0], [1.0]])
    before = applier.params[1].numpy()
    core.pull(0)
    push(core, 0, 2, [[1.0], None])
    npt.assert_array_equal(applier.params[1], before)


def test_a_flush_updates_a_variable_of_which_one_push_had_a_gradient():
    core, applier = core_of("ssgd", keras.optimizers.SGD(1.0), [[1.0], [1.0], [1.0]], workers=3)
    push(core, 0, 1, [[1.0], [1.0], None])
    push(core, 1, 1, [[1.0], None, None])
    core.flush()
    npt.assert_array_equal(applier.params, [[0.0], [0.5], [1.0]])
    assert applier.unused == {2}


def test_a_restored_server_has_the_variables_without_gradient():
    core, applier = core_of("ssgd", keras.optimizers.AdamW(0.1, weight_decay=0.5), [[1.0], [1.0]])
    push(core, 0, 1, [[1.0], None])
    again = ModelApplier(applier.part)
    again.restore(applier.unused)
    resumed = AlgorithmState(core.rule, again, 2)
    resumed.restore(core.shared, core.worker_states, core.version, core.pulls)
    resumed.flush()
    npt.assert_array_equal(again.params[1], [1.0])
