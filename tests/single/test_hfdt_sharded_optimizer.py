"""HFDT's `--shard-optimizer`: each rank updates its part of every weight, with the numbers of whole updates."""

import contextlib

import keras
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf
import tf_keras

from client_shim.capture.data import capture_data
from fdt.blobs import LocalBlobs
from fdt.data import open_source
from fdt.errors import UserError
from fdt.job import FitArguments, State
from fdt.keras import flavor_of
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.trainable import LEFT_OUT, Trainable, read
from hfdt.worker.session import RankProgram, patches
from hfdt.worker.sharded_optimizer import check_elementwise
from tests.in_process_comm import on_ranks

pytestmark = pytest.mark.filterwarnings("default")
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, 7)).astype("float32"), RNG.normal(size=(32, 1)).astype("float32")
TOKENS = RNG.integers(0, 20, size=(32, 4)).astype("int32")
optimizers = keras.optimizers
OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True, clipvalue=0.1),
    "adam, a schedule": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(0.05, 2, 0.5), amsgrad=True),
    "adamw": lambda: excluding(optimizers.AdamW(0.05, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=3)),
    "rmsprop": lambda: optimizers.RMSprop(0.02, momentum=0.5, centered=True, clipnorm=0.05),
    "adagrad": lambda: optimizers.Adagrad(0.1, global_clipnorm=0.05),
    "lion": lambda: optimizers.Lion(0.01, gradient_accumulation_steps=2),
    "nadam": lambda: optimizers.Nadam(0.02, loss_scale_factor=8.0),
}

keras2 = tf_keras.optimizers  # real ranks train with them: tests/parallel/tf_keras_cases.py


def excluding(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def dense(optimizer, library=keras, **compiled):
    keras.utils.set_random_seed(1)
    first = library.layers.Dense(5, "tanh", kernel_constraint=library.constraints.MaxNorm(0.8))
    model = library.Sequential([library.Input((7,)), first, library.layers.Dense(1)])
    model.compile(optimizer, "mse", **compiled)
    return model


def embedding(optimizer, **compiled):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(20, 3), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
    model.compile(optimizer, "mse", **compiled)
    return model


class OneLayer(keras.Sequential):
    """Its steps update the last layer and assign the first; EMA overwrites both."""

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        last = self.trainable_variables[2:]
        self.layers[0].kernel.assign(0.9 * self.layers[0].kernel)
        self.optimizer.apply(tape.gradient(loss, last), last)
        return self.compute_metrics(x, y, None)


def one_layer(optimizer, **compiled):
    keras.utils.set_random_seed(1)
    model = OneLayer([keras.Input((7,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **compiled)
    optimizer.build(model.trainable_variables)
    return model


def slots(session):
    return sum(v.numpy().nbytes for v in session.trainable.optimizer if len(v.shape))


def alone(model, x, rows=slice(None)):
    """The weights and the optimizer's values after two epochs without ranks. Keras's fit would end EMA."""
    x, y = x[rows], Y[rows]
    for start in [*range(0, len(x), 8)] * 2:
        model.train_on_batch(x[start : start + 8], y[start : start + 8])
    return [*model.get_weights(), *read(flavor_of(model).optimizer(model))]


def trained(size, make, optimizer, x=X, **options):
    """([weight or optimizer's value, ...], bytes of each rank's slots) after an epoch, and an epoch of a second fit."""
    models = [make(optimizer(), run_eagerly=True) for _ in range(size)]  # ranks are threads
    flavor, blobs = flavor_of(models[0]), LocalBlobs.create()
    fit = FitArguments(batch_size=8, epochs=2, shuffle=False)
    options = {"rule": "allreduce", "shard_optimizer": "1", **options}
    states = []

    def rank(comm):
        source = open_source(data.train, fit, blobs, 0, training=True, flavor=flavor.name)
        with contextlib.closing(RankProgram(Trainable(flavor, models[comm.rank]), comm, options)) as session:
            session.prepare(source, None)
            session.train(source, 0, lambda *_: True)
            arrays = session.arrays()
            if arrays is not None:
                states.append(State(*map(blobs.put_arrays, arrays)))
            comm.sum([0.0], "the state of the first fit is stored")
            session.load(states[0], blobs)
            session.prepare(source, None)
            session.train(source, 1, lambda *_: True)
            return session.arrays(), models[comm.rank].get_weights(), slots(session)

    with contextlib.closing(blobs), patches(flavor.name):
        data = capture_data(flavor.name, blobs, x, Y, batch_size=8)
        for model in models:
            flavor.build(model, data.spec)
        results = on_ranks(size, rank)
    for _, weights, _ in results:
        for mine, other in zip(results[0][1], weights, strict=True):
            npt.assert_array_equal(mine, other)
    model, state = results[0][0]
    return [*model, *state], [held for *_, held in results]


def check(size, make, optimizer, x=X, rows=slice(None), **options):
    """Return the bytes of each rank's slots."""
    found, held = trained(size, make, optimizer, x, **options)
    for ours, theirs in zip(found, alone(make(optimizer()), np.nan_to_num(x), rows), strict=True):
        npt.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    return held


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_numbers_are_those_of_whole_updates(name):
    check(2, dense, OPTIMIZERS[name])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_rank_holds_its_part_of_the_slots(size):
    held = check(size, dense, lambda: optimizers.Adam(0.05), bucket_mb="0.00005")
    assert held == [2 * 4 * (-(-35 // size) + 2 * -(-5 // size) + 1)] * size


def test_an_average_of_weights_that_a_step_does_not_update():
    check(2, one_layer, lambda: optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=2))


@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
def test_a_weight_with_sparse_gradients_is_whole_on_every_rank(clip):
    held = check(3, embedding, lambda: optimizers.Adam(0.05, **{clip: 0.05}), TOKENS)
    assert held == [2 * 4 * (60 + 1 + 1)] * 3


def test_a_step_with_nan_is_left_out():
    bad = X.copy()
    bad[13] = np.nan
    check(2, dense, lambda: optimizers.Adam(0.05), bad, np.r_[0:8, 16:32], on_nan="skip")


class Centralised(optimizers.Adam):
    def apply(self, grads, trainable_variables=None):
        super().apply([g - tf.reduce_mean(g) for g in grads], trainable_variables)


@pytest.mark.parametrize(
    ("make", "received"),
    [
        (lambda: optimizers.Lamb(), "Lamb"),
        (lambda: Centralised(), "the script's Centralised"),
        (lambda: optimizers.LossScaleOptimizer(optimizers.SGD()), "LossScaleOptimizer"),
        (lambda: optimizers.SGD(clipnorm=1.0, gradient_accumulation_steps=2), "both"),
        (lambda: keras2.legacy.Adam(), "a legacy Adam of tf_keras"),
        (lambda: tf_keras.mixed_precision.LossScaleOptimizer(keras2.SGD()), "LossScaleOptimizerV3"),
    ],
)
def test_an_optimizer_that_needs_whole_weights_is_refused(make, received):
    optimizer = make()
    model = dense(optimizer, keras if isinstance(optimizer, optimizers.Optimizer) else tf_keras)
    with pytest.raises(UserError, match=f"^--shard-optimizer .* Received: {received}$"):
        check_elementwise(Trainable(flavor_of(model), model))


def test_slots_that_a_callback_did_not_write_are_each_ranks_own():
    models = [dense(optimizers.Adam(0.05), run_eagerly=True) for _ in range(2)]
    blobs, flavor = LocalBlobs.create(), flavor_of(models[0])

    def rank(comm):
        source = open_source(data.train, fit, blobs, 0, training=True, flavor=flavor.name)
        trainable = Trainable(flavor, models[comm.rank])
        with contextlib.closing(RankProgram(trainable, comm, {"rule": "allreduce", "shard_optimizer": "1"})) as session:
            session.prepare(source, None)
            session.train(source, 0, lambda *_: True)
            before, rate = session.arrays(), next(v for v in trainable.optimizer if v.name == "learning_rate")
            wanted = [np.float32(0.5) if v is rate else LEFT_OUT for v in trainable.optimizer]
            session.load(State(BlobRef(), blobs.put_arrays(wanted)), blobs)
            return before, session.arrays(), float(rate.value)

    fit = FitArguments(batch_size=8, epochs=2, shuffle=False)
    with contextlib.closing(blobs), patches(flavor.name):
        data = capture_data(flavor.name, blobs, X, Y, batch_size=8)
        for model in models:
            flavor.build(model, data.spec)
        ((_, slots_before), (_, slots_after), rate), (*_, other_rate) = on_ranks(2, rank)
    assert rate == other_rate == 0.5
    for was, now in zip(slots_before[2:], slots_after[2:], strict=True):
        npt.assert_array_equal(was, now)


@pytest.mark.parametrize("clip", [{"clipnorm": 1e-3}, {"global_clipnorm": 1e-3}])
def test_norms_of_double_precision_are_of_double_precision(clip):
    keras.config.set_dtype_policy("float64")
    try:
        found, _ = trained(2, dense, lambda: optimizers.SGD(0.05, **clip), X.astype("float64"))
        expected = alone(dense(optimizers.SGD(0.05, **clip)), X.astype("float64"))
    finally:
        keras.config.set_dtype_policy("float32")
    for ours, theirs in zip(found, expected, strict=True):
        npt.assert_allclose(ours, theirs, rtol=1e-12)
