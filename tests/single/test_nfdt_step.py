"""The compiled step of an NFDT worker."""

import operator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

keras = pytest.importorskip("keras")
import tensorflow as tf  # noqa: E402

from fdt.data import source  # noqa: E402
from fdt.errors import NeedsReplica, UserError  # noqa: E402
from fdt.keras import named  # noqa: E402
from fdt.keras.variables import moving_averages, tensor_variable  # noqa: E402
from fdt.trainable import Trainable  # noqa: E402
from nfdt import algorithms, compressors  # noqa: E402
from nfdt.model.shards import pushed_others  # noqa: E402
from nfdt.transport import Weights  # noqa: E402
from nfdt.worker.local_steps import (  # noqa: E402
    ByShape,  # noqa: E402
    LocalStep,
    LocalSteps,
)
from nfdt.worker.process import compression_notes  # noqa: E402
from nfdt.worker.run import WorkerJob  # noqa: E402
from nfdt.worker.step import GradientStep, ownerships, samples_of  # noqa: E402

FLAVORS = {"keras": keras, "tf_keras": pytest.importorskip("tf_keras")}


def batch_norm_model(flavor="keras", eager=False):
    api = FLAVORS[flavor]
    norm = api.layers.BatchNormalization(momentum=0.5)
    made = api.Sequential([api.layers.InputLayer((2,)), api.Sequential([norm]), api.layers.Dense(1)])
    made.compile(api.optimizers.SGD(0.1), "mse", run_eagerly=eager)
    made.optimizer.build(made.trainable_variables)
    spec = (tf.TensorSpec((None, 2), tf.float32), tf.TensorSpec((None,), tf.float32), None)
    named(flavor).build(made, spec)
    return Trainable(named(flavor), made), norm


def weights_of(owned):
    part = owned[0].part
    behind = len(part.trainable) + len(part.others)
    positions = [*range(len(part.trainable)), *range(behind, behind + len(part.scalars))]
    return [Weights(positions, [tensor_variable(v).read_value() for v in (*part.trainable, *part.scalars)])]


STEPS = {
    "step": ("asgd", 1, 0.5),
    "local": ("server_optimizer(local_steps=3)", 3, 0.5**3),
    "micro": ("ddc_asgd(micro_steps=2)", 1, 0.5**2),
}


@pytest.mark.parametrize("eager", [False, True], ids=["traced", "eager"])
@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("kind", STEPS)
def test_a_push_says_what_is_left_of_a_moving_average(kind, flavor, eager):
    """From the value that the worker pulled it leads to the value that the worker has reached."""
    rule, count, left = STEPS[kind]
    trainable, norm = batch_norm_model(flavor, eager)
    tensor_variable(norm.moving_mean).assign([8.0, -8.0])
    owned = ownerships(trainable, 1)
    x = tf.constant(np.arange(8, dtype=np.float32).reshape(4, 2))
    step = GradientStep(trainable).of(algorithms.make(rule))
    step.trace((tf.TensorSpec((4, 2), tf.float32), tf.TensorSpec((4,), tf.float32)), owned)
    pushed = step.run(0, [(x, tf.zeros(4))] * count, owned, weights_of(owned))
    assert list(pushed.changed) == [0, 1] and list(pushed.decays) == [left, left]
    np.testing.assert_allclose(left * np.array([8.0, -8.0]) + pushed.changes[0], norm.moving_mean, rtol=1e-6)


@pytest.mark.parametrize(
    "kind", [GradientStep, lambda trainable: LocalSteps(LocalStep(trainable))], ids=["step", "local"]
)
def test_a_step_that_is_not_finite_leaves_no_trace_in_the_worker(kind):
    trainable, norm = batch_norm_model()
    step, owned = kind(trainable), ownerships(trainable, 1)
    pulled = weights_of(owned)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    bad = step.run(0, [(tf.constant(x * np.nan), tf.zeros(4))], owned, pulled)
    assert not bad.finite and not bad.changed and not bad.changes
    good = step.run(0, [(tf.constant(x), tf.zeros(4))], owned, pulled)
    assert good.finite
    np.testing.assert_allclose(norm.moving_mean, x.mean(0) / 2, rtol=1e-6)


def test_local_steps_that_are_not_finite_leave_the_optimizer_of_the_lane_as_it_was():
    # w is 0 at each pull. The gradient of (w x - y)**2 is -2 x y = 2, and the momentum 0.5: steps of .2, then .3.
    trainable = linear()
    tensor_variable(trainable.trainable[0]).assign([[0.0]])
    step, owned = LocalSteps(LocalStep(trainable)), ownerships(trainable, 1)
    pulled = weights_of(owned)
    taken = [step.run(0, [(tf.constant([[x]]), -tf.ones(1))], owned, pulled).gradient for x in (1.0, np.nan, 1.0)]
    np.testing.assert_allclose(np.ravel(taken), [0.2, np.nan, 0.3], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*does not have a `build")
@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_batch_norm_that_the_model_never_uses_has_no_average(flavor):
    api = FLAVORS[flavor]

    class Model(api.Model):
        def __init__(self):
            super().__init__()
            self.used, self.unused = api.layers.BatchNormalization(momentum=0.5), api.layers.BatchNormalization()

        def call(self, inputs, training=False):
            return self.used(inputs, training=training)

    made = Model()
    made(tf.zeros((4, 2)))
    averages = {id(tensor_variable(v)): 0.5 for v in (made.used.moving_mean, made.used.moving_variance)}
    assert moving_averages(made) == averages


def test_batches_that_flatten_alike_are_not_taken_for_one_another():
    seen = []

    def function(batch, tensors):
        seen.append(batch)
        return batch[1] * tensors[0] if isinstance(batch, tuple) else batch["b"] * tensors[0] + 1.0, len(seen)

    by_shape = ByShape(function, batch_norm_model()[0])
    one, two = tf.constant([1.0]), tf.constant([2.0])
    for batch, expected in (((one, two), (4.0, 1)), ({"a": one, "b": two}, (5.0, 2)), ((one, two), (4.0, 1))):
        result, found = by_shape(batch, [two])
        assert (float(result[0]), found) == expected and by_shape.found == found
    by_shape.trace({"a": tf.TensorSpec([1]), "b": tf.TensorSpec([1])}, [two])
    assert len(seen) == 2 and by_shape.found == 2, "each is traced once"


def test_batches_are_computed_as_the_last_specs_describe_them():
    one, rows = tf.constant([2.0]), tf.ones(3)
    by_shape = ByShape(lambda batch, tensors: (batch * tensors[0], batch.shape[0]), batch_norm_model()[0])
    for spec, known in (([3], 3), ([None], None), ([3], 3)):
        by_shape.trace(tf.TensorSpec(spec), [one])
        assert by_shape(rows, [one])[1] == known, "of rows"
    assert by_shape(tf.ones(2), [one])[1] is None, "no function of two rows is compiled where one of any number is"


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("rule", ["asgd", "server_optimizer(local_steps=2)", "ddc_asgd(micro_steps=2)"])
def test_a_push_has_the_weights_and_variables_of_its_own_batch(rule, flavor):
    """(x,) trains the first layer and adds to one count, (x, y) the second and the other."""
    api = FLAVORS[flavor]

    class Semi(api.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = api.layers.Dense(2), api.layers.Dense(2)
            self.counts = [self.add_weight(shape=(), initializer="zeros", trainable=False, name=n) for n in "ab"]

        def train_step(self, data):
            layer, count = (self.first, self.counts[0]) if len(data) == 1 else (self.second, self.counts[1])
            count.assign_add(1.0)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((layer(data[0]) - data[-1]) ** 2)
            variables = layer.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"loss": loss}

    model, x = Semi(), tf.constant(np.arange(8, dtype=np.float32).reshape(4, 2))
    model.first.build((None, 2)), model.second.build((None, 2))
    model.built = True
    model.compile(api.optimizers.SGD(0.1))
    model.optimizer.build(model.trainable_variables)
    made, spec = GradientStep(trainable := Trainable(named(flavor), model)), tf.TensorSpec([None, 2])
    owned = ownerships(trainable, 1)
    for specs, batch in (((spec,), (x,)), ((spec, spec), (x, 1 - x)), ((spec,), (x,)), ((spec, spec), (x, 1 - x))):
        step = made.of(algorithms.make(rule))
        step.trace(specs, owned)
        pushed, second = step.run(0, [batch], owned, weights_of(owned)), len(batch) == 2
        moved = {
            id(v) for v, g in zip(trainable.trainable, pushed.gradient, strict=True) if g is not None and np.any(g)
        }
        assert moved == set(map(id, (model.first, model.second)[second].trainable_variables))
        assert [trainable_count(trainable, i, model.counts) for i in pushed.changed] == [int(second)]


def trainable_count(trainable, position, counts):
    """Return which of `counts` the pushed variable at `position` is."""
    pushed = tensor_variable(pushed_others(trainable)[position])
    return next(number for number, count in enumerate(counts) if tensor_variable(count) is pushed)


def notes(batches, size, note="", adds_rows=False, reads=(), changes=(), lanes=1, rule="asgd"):
    trainable = SimpleNamespace(model=SimpleNamespace(steps_per_execution=1, optimizer=None), trainable=())
    run = SimpleNamespace(steps=batches, _trainable=trainable, _member=SimpleNamespace(size=size))
    run.algorithm, run._lanes = rule, lanes
    step = SimpleNamespace(found=SimpleNamespace(adds_rows=adds_rows, reads=reads), added=changes)
    made = replace(algorithms.make(rule), note=note)
    return [line for line in WorkerJob._find_notes(run, made, step) if line]


@pytest.mark.parametrize(("batches", "said"), [(2, ["an epoch has 2 batches for 3 workers"]), (3, []), (None, [])])
def test_workers_that_have_nothing_to_do_are_said_at_start(batches, said):
    first, *others = notes(batches, 3)
    assert first == "asgd on 3 workers approximates: numbers are not those of one machine"
    assert len(others) == len(said) and all(words in line for words, line in zip(said, others, strict=True))


def test_an_algorithm_with_a_note_and_one_worker_do_not_say_that_they_approximate():
    assert notes(3, 3, "an epoch is a round") == ["an epoch is a round"]
    assert notes(3, 1) == []
    (line,) = notes(3, 1, adds_rows=True)
    assert "numbers are not those of one machine" in line
    assert len(notes(3, 3, adds_rows=True)) == 1
    assert "an embedding's repeated rows" in notes(3, 3, adds_rows=True, rule="ssgd")[-1]
    (line,) = notes(3, 1, reads=["dense/kernel"])
    assert line.startswith("the training step reads 'dense/kernel' after the update")
    assert notes(3, 1, changes=["queue"]) == []
    assert notes(3, 3, changes=["queue"])[1].startswith("the training step changes 'queue', and the server adds up all")


@pytest.mark.parametrize(
    ("rule", "lanes", "exact"),
    [
        ("asgd", 1, True),
        ("ddc_asgd", 1, True),
        ("ddc_asgd(micro_steps=2)", 1, False),
        ("dana_dc", 1, False),
        ("dc_asgd_k", 1, False),  # with Nesterov's momentum, a schedule, or a mu of its own
        ("asgd", 2, False),
    ],
)
def test_one_worker_says_where_it_approximates(rule, lanes, exact):
    said = [] if exact else [f"{rule} on 1 worker approximates: numbers may not be those of one machine"]
    assert notes(3, 1, rule=rule, lanes=lanes) == said


@pytest.mark.parametrize(
    ("text", "sends", "said"),
    [("", True, []), ("none", True, []), ("fp16", True, ["leaves out"]), ("fp16", False, ["is not used"])],
)
def test_compression_that_is_used_or_not_is_said(text, sends, said):
    lines = compression_notes(compressors.make(text), sends=sends)
    assert len(lines) == len(said) and all(words in line for words, line in zip(said, lines, strict=True))


@pytest.mark.parametrize(
    "batch",
    [
        tf.zeros((4, 3)),
        (tf.zeros((4, 3)), tf.zeros(4), None),
        ({"scale": tf.constant(1.0), "image": tf.zeros((4, 3))}, tf.zeros(4)),  # a tree's leaves go by sorted names
        ({"nodes": tf.zeros((9, 3)), "edges": tf.zeros((4, 2))}, tf.zeros(4)),
        (tf.constant(7), (tf.zeros((4, 3)), tf.zeros(4))),  # as `enumerate` has them
        ((), {}, tf.zeros((4, 3))),
        tf.ragged.constant([[1.0], [], [2.0, 3.0], [4.0]]),
        tf.sparse.from_dense(tf.zeros((4, 3))),
    ],
    ids=["tensor", "weighted", "scalar", "dict", "enumerated", "empty", "ragged", "sparse"],
)
def test_rows_of_a_batch(batch):
    assert samples_of(batch) == int(source.rows(batch)) == 4


def linear(loss="mse", momentum=0.5):
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    made.compile(keras.optimizers.SGD(0.1, momentum=momentum), loss)
    made.optimizer.build(made.trainable_variables)
    named("keras").build(made, (tf.TensorSpec((None, 1), tf.float32), tf.TensorSpec((None,), tf.float32), None))
    return Trainable(named("keras"), made)


def micro_steps(trainable, parts, x, y):
    owned = ownerships(trainable, 1)
    step = GradientStep(trainable).of(algorithms.make(f"ddc_asgd(micro_steps={parts})"))
    x, y = tf.constant(x, tf.float32)[:, None], tf.constant(y, tf.float32)
    step.trace((tf.TensorSpec((len(x), 1), tf.float32), tf.TensorSpec((len(x),), tf.float32)), owned)
    return step.run(0, [(x, y)], owned, weights_of(owned))


def test_micro_steps_push_the_mean_gradient_along_their_path():
    # The gradient of (w x)**2 is 2 w x**2, and w is 1. The parts have one row of x = 1 and two of x = 2.
    # The first gradient is 2; eta / ((1 - mu) 2) = .1, so w = .8; the second is 2 * 2 * 1.6 = 6.4.
    trainable = linear()
    pushed = micro_steps(trainable, 2, [1.0, 2.0, 2.0], [0.0, 0.0, 0.0])
    np.testing.assert_allclose(pushed.gradient[0], [[2 / 3 + 6.4 * 2 / 3]], rtol=1e-6)
    np.testing.assert_allclose(trainable.model.get_metrics_result()["loss"], (1.0 + 1.6**2 * 2) / 3, rtol=1e-6)


def test_a_batch_of_fewer_rows_than_micro_steps_has_as_many_as_rows():
    pushed = micro_steps(linear(), 4, [1.0], [0.0])
    np.testing.assert_allclose(pushed.gradient[0], [[2.0]], rtol=1e-6)


def test_micro_steps_refuse_a_loss_that_is_a_sum():
    with pytest.raises(UserError, match="needs a loss that is a mean over the batch"):
        micro_steps(linear(keras.losses.MeanSquaredError(reduction="sum")), 4, [1.0] * 8, [0.0] * 8)


NOISY = {"batch_norm": keras.layers.BatchNormalization, "dropout": lambda: keras.layers.Dropout(0.5)}


@pytest.mark.parametrize("noisy", NOISY)
def test_micro_steps_tell_a_mean_from_a_sum_by_two_rows_and_by_noise(noisy):
    """A single row of BatchNorm has no gradient, and each pass through Dropout has another one."""
    keras.utils.set_random_seed(3)
    x, y = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones((2, 1), np.float32)
    for reduction in ("sum_over_batch_size", "sum"):
        layers = [keras.layers.Dense(8), NOISY[noisy](), keras.layers.Dense(1)]
        made = keras.Sequential([keras.Input((3,)), *layers])
        made.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError(reduction=reduction), run_eagerly=True)
        made.optimizer.build(made.trainable_variables)
        named("keras").build(made, (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)), None))
        trainable = Trainable(named("keras"), made)
        owned = ownerships(trainable, 1)
        step = GradientStep(trainable).of(algorithms.make("ddc_asgd(micro_steps=2)"))
        for rows in (1, 2):  # one row is its own mean and its own sum
            batch = tf.constant(x[:rows]), tf.constant(y[:rows])
            if reduction == "sum" and rows == 2:
                with pytest.raises(UserError, match="needs a loss that is a mean over the batch"):
                    step.run(0, [batch], owned, weights_of(owned))
            else:
                step.run(0, [batch], owned, weights_of(owned))


def test_micro_steps_leave_no_trace_of_a_gradient_that_is_not_finite():
    pushed = micro_steps(linear(), 2, [1.0, np.nan], [0.0, 0.0])
    assert not pushed.finite


@pytest.mark.parametrize(
    ("flavor", "optimizer", "clip", "embeds", "adds"),
    [
        ("keras", "Adagrad", {}, True, True),
        ("keras", "Adagrad", {}, False, False),
        ("keras", "SGD", {}, True, False),
        ("keras", "SGD", {"clipnorm": 1.0}, True, True),
        ("keras", "SGD", {"global_clipnorm": 1.0}, False, False),
        ("tf_keras", "SGD", {"clipvalue": 1.0}, True, True),
        ("tf_keras", "Adagrad", {}, True, False),
        ("tf_keras", "legacy.SGD", {}, True, False),
        ("tf_keras", "legacy.SGD", {"momentum": 0.9}, True, True),
        ("tf_keras", "legacy.SGD", {"momentum": 0.9}, False, False),
        ("tf_keras", "legacy.Nadam", {}, True, True),
        ("tf_keras", "legacy.Adam", {}, True, False),
        ("tf_keras", "legacy.RMSprop", {}, True, False),
    ],
)
def test_rows_of_an_embedding_that_are_added_are_known_where_the_optimizer_takes_each_alone(
    flavor, optimizer, clip, embeds, adds
):
    api = FLAVORS[flavor]
    layer = api.layers.Embedding(4, 2) if embeds else api.layers.Dense(2)
    given = api.layers.InputLayer((2,), dtype="int64" if embeds else "float32")
    model = api.Sequential([given, layer, api.layers.Flatten(), api.layers.Dense(1)])
    model.compile(operator.attrgetter(optimizer)(api.optimizers)(0.1, **clip), "mse")
    spec = tf.TensorSpec((None, 2), tf.int64 if embeds else tf.float32), tf.TensorSpec((None, 1), tf.float32), None
    named(flavor).build(model, spec)
    step = GradientStep(trainable := Trainable(named(flavor), model))
    step.trace(spec, ownerships(trainable, 1))
    assert step.found.adds_rows == adds
    assert step.found.reads == []


@pytest.mark.parametrize(
    ("log", "name"),
    [
        (lambda model: tf.reduce_sum(model.layers[0].kernel), "kernel"),
        (lambda model: model.optimizer.iterations, "iteration"),
        (lambda model: model.optimizer.iterations.value, "iteration"),
        (lambda model: model.layers[0].bias[0], "bias"),
    ],
)
def test_variables_that_a_step_reads_behind_the_update_are_known(log, name):
    class Reads(keras.Sequential):
        def train_step(self, data):
            return {**super().train_step(data), "after": log(self)}

    model = Reads([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    spec = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)), None
    named("keras").build(model, spec)
    step = GradientStep(trainable := Trainable(named("keras"), model))
    step.trace(spec, ownerships(trainable, 1))
    assert [read.rpartition("/")[2] for read in step.found.reads] == [name]


class Remembering(keras.layers.Layer):
    """Holds the mean of the last batch, beside a count."""

    def build(self, shape):
        self.last = self.add_weight(shape=(), trainable=False, name="last")
        self.count = self.add_weight(shape=(), dtype="int64", trainable=False, name="count", initializer="zeros")

    def call(self, x):
        self.last.assign(keras.ops.mean(x))
        self.count.assign(self.count + 1)
        return x


@pytest.mark.parametrize("rule", ["asgd", "server_optimizer(local_steps=2)"])
def test_variables_whose_changes_are_added_are_known(rule):
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.BatchNormalization(), Remembering(), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    spec = tf.TensorSpec((None, 2)), tf.TensorSpec((None, 1)), None
    named("keras").build(model, spec)
    step = GradientStep(trainable := Trainable(named("keras"), model))
    step.of(algorithms.make(rule)).trace(spec, ownerships(trainable, 1))
    assert [name.rpartition("/")[2] for name in step.added] == ["last"]


def in_branch(update):
    tf.cond(tf.random.uniform(()) < 0.5, update, lambda: None)


def in_both_branches(update):
    tf.cond(tf.random.uniform(()) < 0.5, update, update)


def in_loop(update):
    def body(count):
        update()
        return count + 1

    tf.while_loop(lambda count: count < 2, body, [0])


def in_function(update):
    tf.function(update)()


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("within", [in_branch, in_both_branches, in_loop, in_function])
def test_an_update_within_a_branch_a_loop_or_a_function_needs_the_whole_script(flavor, within):
    """The server would apply it once a batch, whether the branch is taken or not."""
    api = FLAVORS[flavor]

    class Within(api.Sequential):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(data[0], training=True) ** 2)
            pairs = list(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True))

            def update():
                self.optimizer.apply_gradients(pairs)

            within(update)
            return {"loss": loss}

    model = Within([api.layers.InputLayer((3,)), api.layers.Dense(1)])
    model.compile(api.optimizers.SGD(0.1), "mse")
    spec = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)), None
    named(flavor).build(model, spec)
    step = GradientStep(trainable := Trainable(named(flavor), model))
    with pytest.raises(NeedsReplica, match="^train_step applies gradients within a branch, a loop or a tf.function, "):
        step.trace(spec, ownerships(trainable, 1))
