"""Algorithms that exchange parameters once a round, over Keras's own fit in memory."""

import sys
from pathlib import Path

import keras
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf
import tf_keras

sys.path.insert(0, str(Path(__file__).parent))
from in_process import trained

from fdt.data import graph
from fdt.errors import CaptureError, UserError
from hfdt.worker.session import RankProgram
from hfdt.worker.step_context import LogSources

ROWS, BATCH, EPOCHS = 70, 16, 2  # the last batch has six rows
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(ROWS, 5)).astype("float32")
Y = (X @ np.array([1.0, -2.0, 0.5, 0.0, 3.0]) + 0.1 * GENERATOR.normal(size=ROWS)).astype("float32")


def model(optimizer=None, *hidden, loss="mse"):
    def make():
        keras.utils.set_random_seed(3)
        made = keras.Sequential([keras.Input((5,)), *[layer() for layer in hidden], keras.layers.Dense(1)])
        made.compile((optimizer or keras.optimizers.SGD)(0.05), loss, metrics=["mae"])
        return made

    return make


def alone(make, epochs=EPOCHS):
    made = make()
    history = made.fit(X, Y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0).history
    return made.get_weights(), history


def momentum(rate):
    return keras.optimizers.SGD(rate, momentum=0.9)


def scaled(rate):
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate))


def relu():
    return keras.layers.Dense(4, "relu")


@pytest.mark.parametrize(("size", "optimizer"), [(2, keras.optimizers.SGD), (3, scaled), (7, momentum)])
def test_local_sgd_that_averages_after_every_step_is_allreduce(size, optimizer):
    # allreduce is what one machine does (tests/parallel/test_sharded.py); of 7 ranks one has no row of the last batch
    make = model(optimizer, relu)
    weights, logs, _, _ = trained("local_sgd(local_steps=1)", size, make, X, Y)
    expected, history = alone(make)
    for got, want in zip(weights, expected, strict=True):
        npt.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    npt.assert_allclose([e["mae"] for e in logs], history["mae"], rtol=1e-5)


class Scaled(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs):
        return self.scale * inputs


def test_local_sgd_averages_the_slots_of_a_scalar_weight():
    make = model(momentum, Scaled)
    weights, *_ = trained("local_sgd(local_steps=1)", 2, make, X, Y)
    for got, want in zip(weights, alone(make)[0], strict=True):
        npt.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "optimizer", "said"),
    [
        ("admm", lambda rate: keras.optimizers.SGD(rate, use_ema=True), "Received: use_ema=True"),
        ("dane", lambda rate: keras.optimizers.SGD(rate, use_ema=True), "Received: use_ema=True"),
        ("dane(solver=cg)", None, "Received: a weight with a constraint"),
    ],
)
def test_what_an_algorithm_with_rounds_does_not_keep_is_refused(rule, optimizer, said):
    def positive():
        return keras.layers.Dense(4, kernel_constraint="non_neg")

    with pytest.raises(UserError, match=said):
        trained(rule, 2, model(optimizer, *([] if optimizer else [positive])), X, Y)


class Steps(keras.Model):
    """A training step of the script's own that applies gradients twice."""

    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def build(self, shape):
        self.out.build(shape)

    def call(self, inputs):
        return self.out(inputs)

    def train_step(self, data):
        inputs, targets = data
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(targets[:, None] - self(inputs, training=True)))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def test_the_numbers_that_a_step_returns_of_all_blocks():
    sources = LogSources(plain=frozenset({"loss", "rows"}), summed=frozenset({"rows"}))
    parts = [({"loss": 1.0, "rows": 3, "mae": 5.0}, 3), ({"loss": 9.0, "rows": 2, "mae": 6.0}, 0)]
    parts.append(({"loss": 4.0, "rows": 1, "mae": 7.0}, 1))
    assert sources.whole(parts) == {"loss": (3 * 1.0 + 4.0) / 4, "rows": 4, "mae": 7.0}
    assert sources.whole(parts[1:2]) == parts[1][0], "this rank counts no block"


def test_coded_refuses_a_step_that_updates_twice():
    def make():
        made = Steps()
        made.build((None, 5))
        made.compile(keras.optimizers.SGD(0.05))
        return made

    with pytest.raises(CaptureError, match="applies gradients 2 times"):
        trained("coded(redundancy=2)", 3, make, X, Y, probe=False)


def test_local_sgd_averages_what_ranks_reach_after_k_steps():
    make = model()
    weights, _, notes, sent = trained("local_sgd(local_steps=2)", 2, make, X[:64], Y[:64], epochs=1)
    halves = []
    for _ in range(2):
        made = make()
        made.set_weights(make().get_weights())
        halves.append(made)
    for first in (0, 32):  # a round is two batches of 16, of which each rank has 8
        for half, made in enumerate(halves):
            for batch in (first, first + 16):
                rows = slice(batch + 8 * half, batch + 8 * half + 8)
                made.train_on_batch(X[rows], Y[rows])
        mean = [(a + b) / 2 for a, b in zip(halves[0].get_weights(), halves[1].get_weights(), strict=True)]
        for made in halves:
            made.set_weights(mean)
    for got, want in zip(weights, mean, strict=True):
        npt.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    assert "a round is 2 batches" in notes[-1]
    assert sent == 2 * 4 * 6  # two averages of 6 weights, 4 bytes each


@pytest.mark.parametrize("rule", ["local_sgd(local_steps=1)", "dane(mu=0.0)", "coded"])
def test_tf_keras_and_a_step_of_the_scripts_own(rule):
    class Model(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.out = tf_keras.layers.Dense(1)

        def call(self, inputs):
            return self.out(inputs)

        def train_step(self, data):
            inputs, targets = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(targets[:, None] - self(inputs, training=True)))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"loss": loss}

    def make():
        tf_keras.utils.set_random_seed(3)
        made = Model()
        made(X[:1])
        made.compile(tf_keras.optimizers.SGD(0.05, momentum=0.9))
        return made

    weights, _, _, _ = trained(rule, 1 if rule.startswith("dane") else 2, make, X, Y)
    for got, want in zip(weights, alone(make)[0], strict=True):
        npt.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_a_pipeline_that_goes_on_is_walked_once(monkeypatch):
    """steps_per_epoch over tf.data: an epoch's second pass must not go through all epochs before."""
    drained = []
    monkeypatch.setattr(graph, "_drain", lambda data: drained.append(list(data)))
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10).repeat(3)
    weights, *_ = trained("dane(local_epochs=2)", 2, model(), data, None, epochs=3, steps=3)
    assert drained == []

    def from_there():
        made = model()()
        if reached:
            made.set_weights(reached)
        return made

    reached = []
    for rows in np.split(np.arange(90) % ROWS, 3):
        reached, *_ = trained("dane(local_epochs=2)", 2, from_there, X[rows], Y[rows], epochs=1, batch=10)
    for got, want in zip(weights, reached, strict=True):
        npt.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


class Twin:
    """Rank 0 of two who hold the same: an exchange doubles. XLA can compile it no more than Horovod's."""

    rank, size = 0, 2

    def sum(self, tensors, name):
        doubled = tf.py_function(lambda *ts: [t + t for t in ts], tensors, [t.dtype for t in tensors])
        for tensor, like in zip(doubled, tensors, strict=True):
            tensor.set_shape(like.shape)
        return doubled


def test_a_masked_loss_is_validated_while_rounds_are_compiled_by_xla(monkeypatch):
    """In validation valid steps are counted over all ranks; in a round a rank's own are enough."""
    tokens = GENERATOR.integers(0, 4, size=(64, 6))
    targets = GENERATOR.normal(size=(64, 6, 1)).astype("float32")
    train, seen = RankProgram.train, {}

    def train_and_evaluate(self, source, epoch, on_batch):
        logs = train(self, source, epoch, on_batch)
        seen["loss"] = self.evaluate(source, epoch)["loss"]
        seen["compiled"] = self.trainable.model.jit_compile
        return logs

    def make():
        keras.utils.set_random_seed(3)
        hidden = keras.layers.Embedding(4, 3, mask_zero=True)
        made = keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(1)])
        made.compile("sgd", "mse", jit_compile=True)
        return made

    monkeypatch.setattr(RankProgram, "train", train_and_evaluate)
    weights, *_ = trained(
        "local_sgd", 2, make, tokens, targets, epochs=1, probe=False, among=lambda _, rank: [rank(Twin())]
    )
    mine = np.arange(64) % 16 < 8  # of a batch's rows, the first rank's
    alone = make()
    alone.set_weights(weights)
    expected = alone.evaluate(tokens[mine], targets[mine], batch_size=8, verbose=0)
    assert seen == {"loss": pytest.approx(expected, rel=1e-5), "compiled": True}
