"""The TensorFlow applier equals the NumPy one, in one function for all workers, with Keras's own optimizer."""

from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf
import tf_keras

from fdt import ops
from fdt.errors import UserError
from fdt.keras.variables import tensor_variable
from nfdt import algorithms
from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm
from nfdt.algorithms import asgd
from nfdt.model.variables import OwnedVariables
from nfdt.server.algorithm_state import AlgorithmState
from nfdt.server.applier import ModelApplier
from nfdt.transport import WorkerGradient
from nfdt.transport.buffers import array_over
from nfdt.tree import TracedProgram, TracedValue, zip_map
from nfdt.worker.local_steps import change_of
from tests.single import schedules
from tests.single.numpy_applier import PlainApplier
from tests.single.schedules import START, gradient

SCHEDULE = "abcABaCbBcaACB"


def part_of(optimizer, values=(START,), others=(), dtype="float32"):
    if not isinstance(optimizer, keras.optimizers.Optimizer):  # tf_keras
        trainable = [tf.Variable(v, dtype=dtype) for v in values]
        if hasattr(optimizer, "build"):  # a legacy one has no build: it makes its slots as it goes
            optimizer.build(trainable)
        return OwnedVariables(optimizer, trainable, [], [])
    trainable = [keras.Variable(tf.constant(v, dtype)) for v in values]
    kinds = [{"i": "int64", "b": "bool"}.get(np.asarray(v).dtype.kind, "float32") for v in others]
    frozen = [keras.Variable(v, trainable=False, dtype=kind) for v, kind in zip(others, kinds, strict=True)]
    optimizer.build(trainable)
    return OwnedVariables(optimizer, trainable, frozen, [v for v in optimizer.variables if v.value.shape.rank == 0])


def push(core, worker, number, grads, samples=1, **more):
    tensors = [None if g is None else tf.constant(g, tf.float32) for g in grads]
    return core.push(worker, number, WorkerGradient(tensors, samples, **more))


def train(rule, schedule, optimizer):
    applier = ModelApplier(part_of(optimizer))
    workers = sorted(set(schedule.lower()))
    core, seen, number = AlgorithmState(rule, applier, len(workers)), {}, dict.fromkeys(workers, 0)
    for letter in schedule:
        name = letter.lower()
        if letter == name:
            seen[name] = core.pull(workers.index(name)).trainable[0].numpy()
        else:
            number[name] += 1
            push(core, workers.index(name), number[name], [schedules.computed(rule, seen[name])])
    core.flush()
    return applier.params[0].numpy(), applier


BOTH_KERAS = pytest.mark.parametrize("lib", [keras, tf_keras], ids=["keras", "tf_keras"])


@pytest.mark.parametrize("name", algorithms.names())
@BOTH_KERAS
def test_tensorflow_and_numpy_agree(name, lib):
    """With momentum, the captured or the rule's own, and with a scaled learning rate, in either Keras."""
    rule = algorithms.make(name)
    schedule = "abcABCabcCBA" if rule.waits else SCHEDULE
    got, applier = train(rule, schedule, lib.optimizers.SGD(0.1, momentum=0.5))
    npt.assert_allclose(got, schedules.train(rule, schedule, mu=0.5), rtol=1e-5)
    assert rule.waits or rule.holds or int(applier.part.optimizer.iterations) == len(schedule) // 2


@pytest.mark.parametrize("name", algorithms.names())
def test_weights_of_double_precision(name):
    weights = keras.Variable(START, dtype="float64")
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
    optimizer.build([weights])
    core = AlgorithmState(algorithms.make(name), applier := ModelApplier(OwnedVariables(optimizer, [weights])), 2)
    sent = [core.pull(worker).trainable[0] for worker in (0, 1)]
    for worker in (0, 1):
        pushed = schedules.computed(core.rule, sent[worker].numpy())
        core.push(worker, 1, WorkerGradient([tf.constant(pushed)], 1))
    core.pull(0)
    wanted = schedules.train(algorithms.make(name), "abABa", mu=0.5)
    npt.assert_allclose(applier.params[0].numpy(), wanted, rtol=1e-6)


def momentum_rule(scale=1.0):
    """asgd whose momentum is its own: what the captured optimizer does alone, if it is off."""

    def init(params, workers):
        return [w * 0.0 for w in params], None

    def push(v, mine, params, push):
        v = zip_map(lambda v, g: push.mu * v + g, v, push.gradient)
        return AlgorithmUpdate(v, lr_scale=scale, momentum="algorithm", fresh=push.gradient), v, mine

    return AsyncAlgorithm(init, asgd.rule().pull, push, own_momentum=lambda shared: True)


def test_an_algorithm_that_does_not_declare_its_momentum_is_refused():
    with pytest.raises(UserError, match="own_momentum .* must say"):
        train(replace(momentum_rule(), own_momentum=None), "aA", keras.optimizers.SGD(0.1))


OPTIMIZERS = {
    "sgd": lambda o: o.SGD(0.1, momentum=0.9),
    "plain": lambda o: o.SGD(0.1),
    "adam": lambda o: o.Adam(0.1, amsgrad=True),
    "adamw": lambda o: o.AdamW(0.1, weight_decay=0.01, beta_1=0.8, use_ema=True),
    "clipped adam": lambda o: o.Adam(0.1, clipnorm=3.0),
    "clipped sgd": lambda o: o.SGD(0.1, momentum=0.9, global_clipnorm=3.0),
    "adamax": lambda o: o.Adamax(0.1),
    "nadam": lambda o: o.Nadam(0.1),
    "schedule": lambda o: o.Adam(o.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "rmsprop": lambda o: o.RMSprop(0.1),
    "adagrad": lambda o: o.Adagrad(0.1),
}


def alone(optimizer, steps, factor=1.0):
    part = part_of(optimizer)
    if factor != 1.0:
        part.optimizer.learning_rate = 0.1 * factor
    for _ in range(steps):
        weights = tensor_variable(part.trainable[0]).numpy()
        part.apply([tf.constant(gradient(weights), tf.float32)], [0])
    return tensor_variable(part.trainable[0]).numpy()


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@BOTH_KERAS
def test_a_rules_momentum_takes_the_place_of_the_optimizers(make, lib):
    got, _ = train(momentum_rule(), "aAaAaAaA", make(lib.optimizers))
    npt.assert_allclose(got, alone(make(lib.optimizers), 4), rtol=1e-5)


@BOTH_KERAS
def test_the_optimizers_nesterov_is_off_with_its_momentum(lib):
    got, _ = train(momentum_rule(), "aAaAaA", lib.optimizers.SGD(0.1, momentum=0.9, nesterov=True))
    npt.assert_allclose(got, alone(lib.optimizers.SGD(0.1, momentum=0.9), 3), rtol=1e-5)


@pytest.mark.parametrize("name", ["sgd", "adam", "nadam", "rmsprop"])
@BOTH_KERAS
def test_a_scaled_rate_is_a_smaller_rate(name, lib):
    optimizer = OPTIMIZERS[name](lib.optimizers)
    got, _ = train(momentum_rule(scale=0.25), "aAaAaA", optimizer)
    npt.assert_allclose(got, alone(OPTIMIZERS[name](lib.optimizers), 3, factor=0.25), rtol=1e-5)
    npt.assert_allclose(optimizer.learning_rate, 0.1)


@BOTH_KERAS
def test_a_schedule_goes_on_under_a_scaled_rate(lib):
    def made(rate):
        return lib.optimizers.SGD(lib.optimizers.schedules.ExponentialDecay(rate, 1, 0.5))

    got, _ = train(momentum_rule(scale=0.25), "aAaAaA", made(0.1))
    npt.assert_allclose(got, alone(made(0.025), 3), rtol=1e-5)


def test_a_gradient_that_overflows_leaves_no_trace_in_a_mean_square():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    core = AlgorithmState(algorithms.make("dc_asgd_a"), applier := ModelApplier(part_of(scaled)), 1)
    for number, value in enumerate((np.nan, np.inf, 1.0), 1):
        core.pull(0)
        push(core, 0, number, [np.full(2, value)])
    npt.assert_allclose(applier.params[0].numpy(), np.array(START) - 0.1, rtol=1e-6)


def test_a_running_maximum_begins_at_minus_infinity():
    part = part_of(keras.optimizers.SGD(0.1), others=[[-np.inf, 2.0]])
    core = AlgorithmState(algorithms.make("asgd"), ModelApplier(part), 1)
    before, after = tf.constant([-np.inf, 2.0]), tf.constant([3.0, 2.5])
    push(core, 0, 1, [START], changes=[change_of(after, before, 1.0)], changed=[0], decays=[1.0])
    npt.assert_array_equal(part.others[0], after)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@BOTH_KERAS
def test_ddc_asgd_with_one_worker_is_the_optimizer_alone(make, lib):
    got, _ = train(algorithms.make("ddc_asgd"), "aAaAaAaA", make(lib.optimizers))
    npt.assert_allclose(got, alone(make(lib.optimizers), 4), rtol=1e-6)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@BOTH_KERAS
def test_ddc_asgds_momentum_is_the_optimizers_where_nothing_is_late(make, lib):
    """One of two workers pushes, what it is told to: all one way, so that its look-ahead costs it nothing."""
    pushed = [[1.0, -2.0], [0.5, -1.0], [2.0, -0.1], [0.3, -3.0]]
    core = AlgorithmState(algorithms.make("ddc_asgd"), applier := ModelApplier(part_of(make(lib.optimizers))), 2)
    part = part_of(make(lib.optimizers))
    for number, grads in enumerate(pushed, 1):
        core.pull(0)
        push(core, 0, number, [np.array(grads)])
        part.apply([tf.constant(grads)], [0])
    npt.assert_allclose(applier.params[0], tensor_variable(part.trainable[0]), rtol=1e-5)


def test_weights_that_somebody_else_writes_are_no_step():
    core = AlgorithmState(algorithms.make("ddc_asgd"), applier := ModelApplier(part_of(keras.optimizers.SGD(0.1))), 2)
    core.pull(0)
    push(core, 0, 1, [np.ones(2)])
    applier.part.trainable[0].assign([100.0, 100.0])
    applier.refresh()
    core.pull(0)
    push(core, 0, 2, [np.ones(2)])
    npt.assert_array_equal(core.shared.step[0], np.zeros(2))


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (keras.optimizers.Lion(0.1), "must be SGD, Adam,.* Received: Lion"),
        (keras.optimizers.RMSprop(0.1, momentum=0.9), "Received: RMSprop"),
        (keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2), "gradient accumulation"),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)), "gradients that overflow"),
        (tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9), "legacy optimizer"),
    ],
)
def test_a_rules_momentum_is_refused_where_it_means_nothing(optimizer, said):
    with pytest.raises(UserError, match=said):
        train(momentum_rule(), "aA", optimizer)


def test_a_legacy_optimizer_keeps_its_momentum_with_the_default_rule():
    def make():
        return tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9)

    alone = tf.Variable(START, dtype=tf.float32)
    optimizer = make()
    for _ in range(3):
        optimizer.apply_gradients([(tf.constant(gradient(alone.numpy()), tf.float32), alone)])
    got, _ = train(algorithms.make(algorithms.default_for(make(), [])), "aAaAaA", make())
    npt.assert_allclose(got, alone.numpy(), rtol=1e-6)


def test_one_function_serves_all_workers():
    _, applier = train(algorithms.make("dc_asgd"), SCHEDULE, keras.optimizers.Adam(0.1))
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
    got, applier = train(algorithms.make("asgd"), "aAaAaA", make())
    alone = part_of(make())
    for _ in range(3):
        alone.optimizer.apply([tf.constant(gradient(alone.trainable[0].numpy()), tf.float32)], alone.trainable)
    npt.assert_allclose(got, alone.trainable[0].numpy(), rtol=1e-6)
    assert int(applier.part.optimizer.iterations) == int(alone.optimizer.iterations)


def test_weights_sent_do_not_change_with_later_updates():
    core = AlgorithmState(algorithms.make("dc_asgd"), ModelApplier(part_of(keras.optimizers.SGD(0.1))), 1)
    sent = core.pull(0).trainable[0]
    push(core, 0, 1, [np.ones(2)])
    push(core, 0, 2, [np.ones(2)])
    npt.assert_array_equal(sent.numpy(), START)


def test_compensation_is_from_what_the_worker_pulled():
    """A slot that aliased the variable would compensate by zero."""
    core = AlgorithmState(
        algorithms.make("dc_asgd(lam=0.5)"), applier := ModelApplier(part_of(keras.optimizers.SGD(0.1))), 2
    )
    seen = [core.pull(w).trainable[0].numpy() for w in (0, 1)]
    push(core, 0, 1, [gradient(seen[0])])
    push(core, 1, 1, [gradient(seen[1])])
    npt.assert_allclose(applier.params[0].numpy(), [3.52, -1.805], rtol=1e-6)


def test_what_the_forward_pass_changed_is_added_once():
    applier = ModelApplier(part_of(keras.optimizers.SGD(0.1), others=(np.zeros(2), np.zeros(2))))
    core = AlgorithmState(algorithms.make("asgd"), applier, 1)
    assert core.pull(0).changed == ()
    for number in (1, 1, 2):  # the first one is retried
        push(core, 0, number, [np.zeros(2)], changes=[tf.ones(2)], changed=(1,), decays=[1.0])
    sent = core.pull(0)
    assert sent.changed == (1,)
    npt.assert_array_equal([o.numpy() for o in sent.others], [[0, 0], [2, 2]])


def test_a_moving_average_follows_the_pushes_in_their_order_however_many_pulled_at_once():
    """Each batch moves the server's average as it would move that of one machine, from wherever it is by then."""
    workers, decay, target = 40, 0.5, np.array([3.0, -1.0])
    applier = ModelApplier(part_of(keras.optimizers.SGD(0.1), others=(np.zeros(2),)))
    core = AlgorithmState(algorithms.make("asgd"), applier, workers)
    expected = np.zeros(2)
    for number in (1, 2):
        pulled = [core.pull(worker).others[0] for worker in range(workers)]
        for worker, value in enumerate(pulled):
            batch = target + worker % 3
            change = (decay * value + (1 - decay) * batch) - decay * value
            push(core, worker, number, [np.zeros(2)], changes=[change], changed=(0,), decays=[decay])
            expected = decay * expected + (1 - decay) * batch
    npt.assert_allclose(core.pull(0).others[0].numpy(), expected, rtol=1e-5)


def test_a_count_that_the_forward_pass_keeps_stays_whole():
    applier = ModelApplier(part_of(keras.optimizers.SGD(0.1), others=(np.zeros(2, np.int64),)))
    core = AlgorithmState(algorithms.make("asgd"), applier, 1)
    core.pull(0)
    push(core, 0, 1, [np.zeros(2)], changes=[tf.constant([1, 2**53 + 1], tf.int64)], changed=(0,), decays=[1.0])
    npt.assert_array_equal(core.pull(0).others[0].numpy(), [1, 2**53 + 1])


def test_a_flag_that_the_forward_pass_sets_is_that_of_the_last_push():
    applier = ModelApplier(part_of(keras.optimizers.SGD(0.1), others=(np.array([False, True]),)))
    core = AlgorithmState(algorithms.make("asgd"), applier, 1)
    core.pull(0)
    for number, flags in ((1, [True, True]), (2, [True, False])):
        push(core, 0, number, [np.zeros(2)], changes=[tf.constant(flags)], changed=(0,), decays=[1.0])
        npt.assert_array_equal(core.pull(0).others[0].numpy(), flags)


def test_a_variable_without_gradient_is_left_alone():
    applier = ModelApplier(part_of(keras.optimizers.AdamW(0.1, weight_decay=0.5), values=(START, START)))
    core = AlgorithmState(algorithms.make("dc_asgd"), applier, 1)
    core.pull(0)
    push(core, 0, 1, [np.ones(2), None])
    npt.assert_array_equal(applier.params[1].numpy(), START)
    assert not np.array_equal(applier.params[0].numpy(), START)


def test_an_overflow_skips_the_update_and_halves_the_scale():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
    core = AlgorithmState(algorithms.make("asgd"), applier := ModelApplier(part_of(optimizer)), 1)
    core.pull(0)
    push(core, 0, 1, [np.array([np.inf, 1.0])])
    npt.assert_array_equal(applier.params[0].numpy(), START)
    assert float(optimizer.dynamic_scale) == 4.0
    push(core, 0, 2, [np.ones(2)])
    npt.assert_allclose(applier.params[0].numpy(), START - 0.1, rtol=1e-6)


def test_a_held_gradient_is_not_overwritten_by_the_next():
    """ssgd keeps the first gradient of a round; the buffer it arrived in is used again."""
    core = AlgorithmState(algorithms.make("ssgd"), applier := ModelApplier(part_of(keras.optimizers.SGD(1.0))), 2)
    buffer = np.ones(64, np.float32)
    core.push(0, 1, WorkerGradient([ops.mapped_tensor(buffer[:2])], 1))
    buffer[:] = 100.0
    push(core, 1, 1, [np.ones(2)])
    npt.assert_allclose(applier.params[0].numpy(), START - 1.0)


@pytest.mark.parametrize(
    "decides",
    [
        *(bool, lambda t: t == 1, lambda t: t != 1, lambda t: t < 1, lambda t: t <= 1),
        *(lambda t: t > 1, lambda t: 1 >= t, lambda t: t in (0, 1)),
    ],
)
def test_deciding_by_an_array_is_an_error(decides):
    with pytest.raises(TypeError, match="must not use arrays as conditions"):
        decides(TracedValue(TracedProgram(), 0))


def test_an_update_without_a_variables_gradient_is_refused():
    short = replace(algorithms.make("asgd"), push=lambda shared, mine, params, p: (AlgorithmUpdate([]), shared, mine))
    core = AlgorithmState(short, ModelApplier(part_of(keras.optimizers.SGD(1.0))), 1)
    core.pull(0)
    with pytest.raises(UserError, match="a gradient for each of the 1 trainable variables. Received: 0"):
        push(core, 0, 1, [np.ones(2)])


def test_the_plain_applier_never_writes_in_place():
    applier = PlainApplier([START])
    core = AlgorithmState(algorithms.make("asgd"), applier, 1)
    sent = core.pull(0)
    core.push(0, 1, WorkerGradient([np.ones(2)], 1))
    npt.assert_array_equal(sent[0], START)


def test_a_tensor_without_dlpack_is_copied():
    old = SimpleNamespace(numpy=lambda: np.ones(2, "float32"))  # TensorFlow 2.16's have none
    np.testing.assert_array_equal(array_over(old), [1, 1])
