"""The TensorFlow applier does what the NumPy one does, in one function for all workers, with Keras's own optimizer."""

import keras
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf

from nfdt import rulebook
from nfdt.schedules import START, gradient
from nfdt.server.applier import Arrived, ModelApplier
from nfdt.server.core import Core, Gradient
from nfdt.server.plain import PlainApplier
from nfdt.server.record import Recorded, Tape
from nfdt.transport.buffers import tensor_over
from nfdt.variables import Part

SCHEDULE = "abcABaCbBcaACB"


def part_of(optimizer, values=(START,), others=()):
    trainable = [keras.Variable(tf.constant(v, tf.float32)) for v in values]
    frozen = [keras.Variable(tf.constant(v, tf.float32), trainable=False) for v in others]
    optimizer.build(trainable)
    return Part(optimizer, trainable, frozen, [v for v in optimizer.variables if v.value.shape.rank == 0])


def push(core, worker, number, grads, samples=1, **more):
    return core.push(worker, number, Gradient(Arrived([tf.constant(g, tf.float32) for g in grads], **more), samples))


def train(rule, schedule, optimizer):
    applier = ModelApplier(part_of(optimizer))
    workers = sorted(set(schedule.lower()))
    core, seen, number = Core(rule, applier, len(workers)), {}, dict.fromkeys(workers, 0)
    for letter in schedule:
        name = letter.lower()
        if letter == name:
            seen[name] = core.pull(workers.index(name)).trainable[0].numpy()
        else:
            number[name] += 1
            push(core, workers.index(name), number[name], [gradient(seen[name])])
    core.flush()
    return applier.params[0].numpy(), applier


def plain(rule, schedule):
    from nfdt import schedules

    return schedules.train(rule, schedule)


@pytest.mark.parametrize("name", rulebook.names())
def test_tensorflow_and_numpy_agree(name):
    schedule = "abcABCabcCBA" if name == "ssgd" else SCHEDULE
    got, _ = train(rulebook.make(name), schedule, keras.optimizers.SGD(0.1))
    npt.assert_allclose(got, plain(rulebook.make(name), schedule), rtol=1e-5)


def test_one_function_serves_all_workers():
    _, applier = train(rulebook.make("dc_asgd"), SCHEDULE, keras.optimizers.Adam(0.1))
    assert len(applier._compiled) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), momentum=0.9),
        lambda: keras.optimizers.AdamW(0.1, weight_decay=0.01, clipnorm=1.0, use_ema=True),
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    ],
)
def test_the_captured_optimizer_does_the_update(make):
    """One worker, asgd: what the optimizer does alone."""
    got, applier = train(rulebook.make("asgd"), "aAaAaA", make())
    alone = part_of(make())
    for _ in range(3):
        alone.optimizer.apply([tf.constant(gradient(alone.trainable[0].numpy()), tf.float32)], alone.trainable)
    npt.assert_allclose(got, alone.trainable[0].numpy(), rtol=1e-6)
    assert int(applier.part.optimizer.iterations) == int(alone.optimizer.iterations)


def test_weights_sent_do_not_change_with_later_updates():
    core = Core(rulebook.make("dc_asgd"), ModelApplier(part_of(keras.optimizers.SGD(0.1))), 1)
    sent = core.pull(0).trainable[0]
    push(core, 0, 1, [np.ones(2)])
    push(core, 0, 2, [np.ones(2)])
    npt.assert_array_equal(sent.numpy(), START)


def test_compensation_is_from_what_the_worker_pulled():
    """A slot that aliased the variable would compensate by zero."""
    core = Core(rulebook.make("dc_asgd(lam=0.5)"), applier := ModelApplier(part_of(keras.optimizers.SGD(0.1))), 2)
    seen = [core.pull(w).trainable[0].numpy() for w in (0, 1)]
    push(core, 0, 1, [gradient(seen[0])])
    push(core, 1, 1, [gradient(seen[1])])
    npt.assert_allclose(applier.params[0].numpy(), [3.52, -1.805], rtol=1e-6)


def test_what_the_forward_pass_changed_is_added_once():
    applier = ModelApplier(part_of(keras.optimizers.SGD(0.1), others=(np.zeros(2), np.zeros(2))))
    core = Core(rulebook.make("asgd"), applier, 1)
    assert core.pull(0).changed == ()
    for number in (1, 1, 2):  # the first one is retried
        push(core, 0, number, [np.zeros(2)], changes=[tf.ones(2)], changed=(1,))
    sent = core.pull(0)
    assert sent.changed == (1,)
    npt.assert_array_equal([o.numpy() for o in sent.others], [[0, 0], [2, 2]])


def test_a_variable_without_gradient_is_left_alone():
    applier = ModelApplier(part_of(keras.optimizers.AdamW(0.1, weight_decay=0.5), values=(START, START)))
    core = Core(rulebook.make("dc_asgd"), applier, 1)
    core.pull(0)
    push(core, 0, 1, [np.ones(2), np.zeros(2)], absent=(1,))
    npt.assert_array_equal(applier.params[1].numpy(), START)
    assert not np.array_equal(applier.params[0].numpy(), START)


def test_an_overflow_skips_the_update_and_halves_the_scale():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
    core = Core(rulebook.make("asgd"), applier := ModelApplier(part_of(optimizer)), 1)
    core.pull(0)
    push(core, 0, 1, [np.array([np.inf, 1.0])])
    npt.assert_array_equal(applier.params[0].numpy(), START)
    assert float(optimizer.dynamic_scale) == 4.0
    push(core, 0, 2, [np.ones(2)])
    npt.assert_allclose(applier.params[0].numpy(), START - 0.1, rtol=1e-6)


def test_a_held_gradient_is_not_overwritten_by_the_next():
    """ssgd keeps the first gradient of a round; the buffer it arrived in is used again."""
    core = Core(rulebook.make("ssgd"), applier := ModelApplier(part_of(keras.optimizers.SGD(1.0))), 2)
    buffer = np.ones(64, np.float32)
    core.push(0, 1, Gradient(Arrived([tensor_over(buffer[:2])]), 1))
    buffer[:] = 100.0
    push(core, 1, 1, [np.ones(2)])
    npt.assert_allclose(applier.params[0].numpy(), START - 1.0)


def test_deciding_by_an_array_is_an_error():
    with pytest.raises(TypeError, match="decide by Python values"):
        bool(Recorded(Tape(), 0))


def test_the_plain_applier_never_writes_in_place():
    applier = PlainApplier([START])
    core = Core(rulebook.make("asgd"), applier, 1)
    sent = core.pull(0)
    core.push(0, 1, Gradient([np.ones(2)], 1))
    npt.assert_array_equal(sent[0], START)
