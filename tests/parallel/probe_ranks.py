"""One rank of test_probe.py: probes of models that divide badly, sessions with options. `probe_ranks.py OUT COMM`"""

import contextlib
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[2]))
from fdt.blobs import LocalBlobs
from fdt.data import open_source
from fdt.errors import CaptureError
from fdt.job import ArrayData, FitArguments, State
from fdt.keras import named
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.tensors import flatten
from fdt.trainable import Trainable
from hfdt.collectives import choose
from hfdt.worker.session import RankProgram, patches

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 6)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def model(hidden, loss="mse", **compiled):
    keras.utils.set_random_seed(3)
    made = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), *hidden(), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.05), loss, **compiled)
    return made


def nothing():
    return []


def batch_norm():
    return [keras.layers.BatchNormalization()]


class Largest(keras.metrics.Metric):
    """A state that does not add up."""

    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y_true))))

    def result(self):
        return self.value


def of_the_batch(true, predicted):
    """Neither a mean nor a sum over samples."""
    return tf.sqrt(tf.reduce_mean(tf.square(true - predicted)))


def of_pairs(true, predicted):
    """Rows against rows: a difference far below what float32 rounds in a deep model."""
    pairs = tf.reduce_mean(tf.square(predicted[:, None] - predicted[None]))
    return tf.reduce_mean(tf.square(true - predicted)) + 1e-4 * pairs


def ordered(true, predicted):
    """Permuted rows give other gradients, which is no rounding either."""
    weights = tf.cast(tf.range(tf.shape(predicted)[0]), predicted.dtype)
    return tf.reduce_mean(tf.square(true - predicted) * weights[:, None])


def summed(true, predicted):
    return tf.reduce_sum(tf.square(true - predicted))


class Mixing(keras.layers.Layer):
    def call(self, x):
        return x - 1e-3 * tf.reduce_mean(x, axis=0, keepdims=True)


class Traced(keras.layers.Layer):
    """Counts its traces."""

    count = 0

    def call(self, x):
        Traced.count += 1
        return x


class Gate(keras.layers.Layer):
    """Begins closed: its rows are mixed from the second step on."""

    def build(self, shape):
        self.gate = self.add_weight(shape=(), initializer="zeros")

    def call(self, x):
        return x + self.gate * tf.reduce_mean(x, axis=0, keepdims=True)


class Term(keras.layers.Layer):
    """An `add_loss` of a sum or a mean, with a weight that callbacks may raise."""

    def __init__(self, reduce=tf.reduce_sum, weight=0.0):
        super().__init__()
        self.reduce = reduce
        self.beta = self.add_weight(
            shape=(), initializer=keras.initializers.Constant(weight), trainable=False, name="beta"
        )

    def call(self, x):
        self.add_loss(1e-3 * self.beta * self.reduce(x))
        return x


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = of_the_batch(y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def own_step():
    inputs = keras.Input((6,))
    made = OwnStep(inputs, keras.layers.Dense(1)(inputs))
    made.compile(keras.optimizers.SGD(0.05))
    return made


def of_one_row():
    """A model whose inputs fix the batch size, with states of as many rows."""
    inputs = keras.Input(batch_shape=(1, 6))
    states = keras.layers.LSTM(2, stateful=True)(keras.layers.Reshape((2, 3))(inputs))
    made = keras.Model(inputs, keras.layers.Dense(1)(states))
    made.compile("sgd", "mse")
    return made


def refused(comm, made):
    """The probe's error; "" where it found none."""
    with opened(comm, made, {}) as (session, source, _):
        try:
            session.prepare(source, None)
        except CaptureError as error:
            return str(error)
    return ""


def reading(comm, made, options):
    """How the losses are read, and the notes."""
    with opened(comm, made, options) as (session, source, _):
        notes = session.prepare(source, None)
        return [session.sharded.terms.reading.name, notes]


def raised_later(comm, reduce, weights, each):
    """(the error, how often the probe looked again) when `beta` is written between steps or epochs."""
    layer, looks = Term(reduce), 0
    with opened(comm, model(lambda: [layer]), {}) as (session, source, blobs):
        session.prepare(source, None)
        trainable, look = session.trainable, session.probing._probe.run
        place = [v is layer.beta for v in [*trainable.trainable, *trainable.non_trainable]].index(True)

        def counted(**kwargs):
            nonlocal looks
            looks += 1
            return look(**kwargs)

        session.probing._probe.run = counted
        for weight in weights:
            arrays = trainable.model_arrays()
            arrays[place] = np.float32(weight)
            session.load(State(blobs.put_arrays(arrays), BlobRef()), blobs)
            try:
                session.probing.again(each=each)
            except CaptureError as error:
                return str(error), looks
    return "", looks


@contextlib.contextmanager
def opened(comm, made, options):
    """(session, source, blobs), before anything is prepared."""
    with contextlib.closing(LocalBlobs.create()) as blobs:
        structure, leaves = flatten((X, Y))
        fit = FitArguments(batch_size=64, shuffle=False)
        source = open_source(
            ArrayData(blobs.put_arrays(leaves), structure, len(X)), fit, blobs, 0, training=True, options=options
        )
        flavor = named("keras")
        flavor.build(made, source.element_spec)
        with contextlib.closing(RankProgram(Trainable(flavor, made), comm, options)) as session:
            yield session, source, blobs


def train(comm, made, options=None, epochs=1, hooks=False):
    """(error or "", notes, last logs, last metric states seen in the middle, weights)"""
    seen = []
    with opened(comm, made, options or {}) as (session, source, _):
        try:
            notes = session.prepare(source, source)
        except CaptureError as error:
            return {"error": str(error)}

        def on_batch(step, logs):
            if hooks:
                seen.append(float(session.peek(logs)[0]["loss"]))
            return True

        before = Traced.count
        logs = [session.train(source, epoch, on_batch) for epoch in range(epochs)]
        traced = Traced.count - before
        validated = session.evaluate(source, 0)
    return {
        "notes": notes,
        "logs": logs,
        "seen": seen,
        "traced": traced,
        "validated": validated,
        "weights": [w.tolist() for w in made.get_weights()],
        "iterations": int(made.optimizer.iterations),
    }


def main(out, name):
    comm, _ = choose(name, int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"]))
    inexact = {"allow_inexact": "true"}
    dropout = keras.layers.Dropout(0.7)
    culprits = {
        "pairs": model(nothing, of_pairs),
        "ordered": model(nothing, ordered),
        "mixing": model(lambda: [dropout, Mixing()]),
        "gate": model(lambda: [Gate()]),
        "term": model(lambda: [Term(weight=1.0)], metrics=["mae"]),
        "own": own_step(),
        "one row": of_one_row(),
        "a sum and a mean": model(lambda: [Term(tf.reduce_mean, 1.0)], summed),
    }
    found = {
        "inexact": train(comm, model(nothing, loss=of_the_batch)),
        "allowed": train(comm, model(nothing, loss=of_the_batch), inexact),
        "dropout": train(comm, model(lambda: [keras.layers.Dropout(0.5)], metrics=["mae"])),
        "local": train(comm, model(lambda: [*batch_norm(), Traced()]), {"batch_norm": "local"}),
        "metric": train(comm, model(nothing, metrics=[Largest()])),
        "metric allowed": train(comm, model(nothing, metrics=[Largest()]), inexact),
        "hooked": train(comm, model(lambda: [Traced()]), hooks=True),
        "half": train(comm, model(nothing), {"compress": "fp16"}),
        "per_worker": train(comm, model(nothing), {"batch": "per-worker", "lr_scale": "none"}, epochs=2),
        "scaled": train(comm, model(nothing), {"batch": "per-worker", "lr_scale": "linear"}, epochs=2),
    }
    found["refused"] = {name: refused(comm, made) for name, made in culprits.items()}
    beside_local = {"sum": model(batch_norm, summed), "mixing": model(lambda: [*batch_norm(), Mixing()])}
    found["beside local"] = {name: reading(comm, made, {"batch_norm": "local"}) for name, made in beside_local.items()}
    found["later"] = {
        "unchanged": raised_later(comm, tf.reduce_sum, [0, 0], each=True),
        "mean": raised_later(comm, tf.reduce_mean, [1, 2, 2, 3], each=True),
        "sum": raised_later(comm, tf.reduce_sum, [0, 1, 2], each=True),
        "each step": raised_later(comm, tf.reduce_mean, [1, 2, 3, 4, 5], each=False),
    }
    Path(f"{out}-{comm.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    with patches("keras"):
        main(*sys.argv[1:])
