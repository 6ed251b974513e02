"""The counts of a replicated script's training: updates of Keras's optimizers, and samples of batches."""

import keras
import pytest
import tensorflow as tf

from fdt.patches import patched
from replica.step_count import OptimizerUpdates, SampleCount, StepCount


class Batches:
    """Batches that enter a script, as RowEntry records them."""

    def __init__(self):
        self.rows, self.entered = (0, 0), 0

    def enter(self, rows):
        self.rows, self.entered = (rows, 2 * rows), self.entered + 1

    def gradient(self):
        pass


def optimizers(count=1):
    weights = [tf.Variable(1.0) for _ in range(count)]
    made = [keras.optimizers.SGD(0.1) for _ in range(count)]
    for optimizer, weight in zip(made, weights, strict=True):
        optimizer.build([weight])
    return made, weights


def called(updates, function, *args):
    """Call a tf.function as Functions does."""
    concrete = function.get_concrete_function(*args)
    with updates.called(concrete.captured_inputs):
        concrete(*args)


@pytest.fixture
def updates():
    found = OptimizerUpdates(SampleCount(Batches()))
    with patched(found.patches("keras")):
        yield found


def test_each_update_in_a_graphs_own_loop_is_a_step(updates):
    (optimizer,), (weight,) = optimizers()

    @tf.function
    def step(count):
        for _ in tf.range(count):
            optimizer.apply_gradients([(tf.constant(1.0), weight)])

    for _ in range(2):
        called(updates, step, tf.constant(3))
    assert updates.steps == 6 and int(optimizer.iterations) == 6


def test_updates_of_two_networks_in_a_call_are_as_many_steps_as_the_larger_number(updates):
    (critic, generator), (one, other) = optimizers(2)

    @tf.function
    def step():
        for _ in range(2):
            critic.apply_gradients([(tf.constant(1.0), one)])
        generator.apply_gradients([(tf.constant(1.0), other)])

    for _ in range(2):
        called(updates, step)
    assert updates.steps == 4


def test_an_eager_update_is_a_step_and_an_assignment_of_the_iterations_none(updates):
    (optimizer,), (weight,) = optimizers()
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant(1.0), weight)])
        optimizer._iterations.assign(100)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    scaled.build([weight])
    scaled.apply_gradients([(tf.constant(1.0), weight)])  # another optimizer of the same weight: another step
    assert updates.steps == 3
    scaled.apply_gradients([(tf.constant(1.0), weight)])
    assert updates.steps == 4


def test_an_optimizer_for_each_batch_and_accumulated_gradients(updates):
    weight = tf.Variable(1.0)
    for _ in range(3):
        keras.optimizers.SGD(0.1).apply([tf.constant(1.0)], [weight])
    assert updates.steps == 3
    accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    accumulating.build([weight])
    step = tf.function(lambda: accumulating.apply([tf.constant(1.0)], [weight]), autograph=False)
    for call in range(8):
        if call < 4:
            accumulating.apply([tf.constant(1.0)], [weight])
        else:
            called(updates, step)
    assert updates.steps == 5


def test_an_optimizer_of_a_strategy_trains_and_is_not_counted(updates):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        weight = tf.Variable(1.0)
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([weight])
        step = tf.function(lambda: strategy.run(lambda: optimizer.apply([tf.constant(1.0)], [weight])))
        called(updates, step)
    assert updates.steps == 0 and float(weight.numpy()) == pytest.approx(0.9)


def test_samples_are_those_of_all_batches_of_which_gradients_are_computed():
    batches = Batches()
    samples = SampleCount(batches)
    steps = StepCount(samples)
    for n in range(1, 9):
        batches.enter(7)
        samples.gradient()
        if n % 4 == 0:
            samples.gradient()  # once more of the same batch, as in sharpness-aware minimization
            steps.updated({0})
    assert (steps.steps, samples.samples, steps.repeats) == (2, 56, False)


@pytest.mark.parametrize(("entries", "repeats"), [((1, 1, 1), False), ((1, 0, 0), True), ((0, 1, 1), True)])
def test_samples_are_not_known_where_a_step_has_no_batch_of_its_own(entries, repeats):
    batches = Batches()
    samples = SampleCount(batches)
    steps = StepCount(samples)
    for count in entries:
        for _ in range(count):
            batches.enter(4)
        samples.gradient()
        steps.updated({0})
    assert steps.repeats is repeats
