"""Local steps and the server's optimizer, with real Keras optimizers, on the simulated clock."""

import numpy as np
import numpy.testing as npt
import pytest

keras = pytest.importorskip("keras")

from fdt.errors import UserError  # noqa: E402
from fdt.job import BatchHooks, State  # noqa: E402
from fdt.network import equal_nodes  # noqa: E402
from nfdt.model.settings import algorithm_of  # noqa: E402
from nfdt.options import Options  # noqa: E402
from tests.single.simulations import FEATURES, ROWS, data, model, simulate  # noqa: E402

ALONE, FOUR = equal_nodes().with_workers(1), equal_nodes().with_workers(4)
STEPS = 11  # batches in an epoch

RATE = [3], [0.1, 0.01]
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay(*RATE), momentum=0.5),
    "adam": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.5)),
    "nadam": lambda: keras.optimizers.Nadam(0.01, weight_decay=0.01, clipnorm=1.0),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
}


def trained(rule, cluster, optimizer, epochs=2):
    simulated = simulate(cluster, rule=rule, source=model(optimizer)).epochs(epochs)
    return simulated, simulated.weights


def batch_norm_model():
    keras.utils.set_random_seed(5)
    layers = [keras.Input((FEATURES,)), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(3)]
    made = keras.Sequential(layers)
    made.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    made.optimizer.build(made.trainable_variables)
    return made


def compare(left, right, **tolerance):
    for a, b in zip(left, right, strict=True):
        npt.assert_allclose(a, b, **(tolerance or {"rtol": 1e-4, "atol": 1e-6}))


def position(variables, name):
    return [v.path.split("/")[-1] for v in variables].index(name)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [1, 4])
def test_one_worker_is_the_captured_optimizer_alone(name, steps):
    """Its slots, its schedule and its last, shorter push are those of one machine."""
    _, alone = trained("asgd", ALONE, OPTIMIZERS[name]())
    simulated, weights = trained(f"server_optimizer(local_steps={steps})", ALONE, OPTIMIZERS[name]())
    compare(weights, alone)
    assert int(simulated.job.trainable.model.optimizer.iterations) == 2 * STEPS


@pytest.mark.parametrize(("rule", "parent"), [("server_optimizer", "asgd"), ("server_optimizer(sync=True)", "ssgd")])
def test_one_local_step_of_sgd_at_server_rate_one_is_the_gradient(rule, parent):
    _, expected = trained(parent, FOUR, keras.optimizers.SGD(0.05))
    _, weights = trained(rule, FOUR, keras.optimizers.SGD(0.05))
    compare(weights, expected, rtol=1e-5, atol=1e-6)


def test_each_batch_is_trained_on_once_and_steps_take_their_time():
    simulated, _ = trained("server_optimizer(local_steps=3)", FOUR, keras.optimizers.Adam(0.01))
    assert [(server.steps, server.samples) for server, _ in simulated.ends()] == [(STEPS, ROWS)] * 2
    assert [workers.steps for _, workers in simulated.ends()] == [STEPS] * 2
    assert len(simulated.pushes()) < 2 * STEPS
    assert 0.25 < simulated.pushes()[1][0] < 0.38, "the second push comes after three steps of 0.1 s"


def test_a_schedule_counts_all_workers_batches_and_slots_their_own():
    """Rate 0 from the ninth batch on: in the second epoch nobody moves."""
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([8], [0.1, 0.0])
    simulated = simulate(FOUR, rule="server_optimizer(local_steps=2)", source=model(keras.optimizers.Adam(schedule)))
    after = simulated.epochs(1).weights
    simulated.session.start_epoch(1, State())
    compare(simulated.weights, after, rtol=0, atol=0)
    steps = simulated.session._step
    count = position(steps._step.own, "iteration")
    assert sum(int(values[count]) for values in steps._own.values()) == 2 * STEPS


def test_a_learning_rate_that_a_callback_writes_reaches_the_workers():
    simulated, before = trained("server_optimizer(local_steps=2)", FOUR, keras.optimizers.SGD(0.05), epochs=1)
    job = simulated.job
    arrays = job.trainable.optimizer_arrays()
    arrays[position(job.trainable.optimizer, "learning_rate")] = np.zeros((), np.float32)
    simulated.session.start_epoch(1, State(optimizer=job.blobs.put_arrays(arrays)))
    compare(simulated.weights, before, rtol=0, atol=0)


def test_changes_of_batch_norm_travel():
    def statistics(rule):
        return simulate(ALONE, rule=rule, source=batch_norm_model()).epochs(1).weights

    compare(statistics("server_optimizer(local_steps=3)"), statistics("asgd"))


def test_batch_hooks_are_called_for_each_batch():
    simulated = simulate(ALONE, rule="server_optimizer(local_steps=4)", hooks=BatchHooks.LOGS)
    simulated.session.start_epoch(0, State())
    for _ in range(STEPS - 1):
        simulated.session.step(State())
    told = [event.step_end for event in simulated.events if event.HasField("step_end")]
    assert [step.step for step in told] == list(range(1, STEPS + 1))
    assert [step.last for step in told] == [False] * (STEPS - 1) + [True]
    assert simulated.ends()[0][0].steps == STEPS


def test_an_average_of_the_weights_is_refused():
    with pytest.raises(UserError, match="use_ema"):
        algorithm_of(Options("server_optimizer"), keras.optimizers.SGD(0.1, use_ema=True), [])


@pytest.mark.parametrize("rule", ["asgd", "ssgd", "server_optimizer(local_steps=3)"])
def test_moving_averages_stay_within_the_data_where_many_push_what_they_pulled_at_once(rule):
    """Four changes of half the distance each would be twice the distance, and grow."""
    simulated = simulate(FOUR, rule=rule, source=batch_norm_model()).epochs(4)
    norm, (x, *_) = simulated.job.trainable.model.layers[0], data()
    assert np.all(norm.moving_mean >= x.min(0)) and np.all(norm.moving_mean <= x.max(0))
    assert np.all(norm.moving_variance > 0.3 * x.var(0)) and np.all(norm.moving_variance < 3 * x.var(0))


class Gate(keras.layers.Layer):
    """A layer that gives zeros until a callback opens it, and notes that it was used."""

    def build(self, shape):
        self.open, self.used = (self.add_weight(shape=(), dtype="bool", initializer=shut, name=n) for n in "ou")
        self.open.trainable = self.used.trainable = False

    def call(self, inputs):
        self.used.assign(True)
        return keras.ops.where(self.open.value, inputs, keras.ops.zeros_like(inputs))


def shut(shape, dtype=None):
    return keras.ops.zeros(shape, dtype)


@pytest.mark.parametrize("rule", ["asgd", "server_optimizer(local_steps=2)"])
def test_a_flag_that_a_callback_sets_reaches_the_workers(rule):
    source = keras.Sequential([keras.Input((FEATURES,)), Gate(), keras.layers.Dense(3)])
    source.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    source.optimizer.build(source.trainable_variables)
    simulated = simulate(FOUR, rule=rule, source=source).epochs(1)
    job, gate = simulated.job, simulated.job.trainable.model.layers[0]
    kernel = job.trainable.model.layers[1].kernel
    shut_kernel = kernel.numpy().copy()
    npt.assert_array_equal(shut_kernel, source.layers[1].kernel)
    assert gate.used.numpy() and not gate.open.numpy()
    arrays = job.trainable.model_arrays()
    arrays[position([*job.trainable.trainable, *job.trainable.non_trainable], "o")] = np.array(True)
    simulated.session.start_epoch(1, State(model=job.blobs.put_arrays(arrays)))
    assert gate.open.numpy() and not np.array_equal(kernel, shut_kernel)
