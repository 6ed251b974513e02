"""What the probe finds in models that split badly, and sessions with options: one rank. `probe_ranks.py OUT COMM`"""

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
from fdt.job import ArrayData, FitArguments
from fdt.keras import named
from fdt.structure import flatten
from fdt.trainable import Trainable
from hfdt.comm import choose
from hfdt.session import Session, patches

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


def train(comm, made, options=None, epochs=1, hooks=False):
    """(error or "", notes, last logs, last metric states seen in the middle, weights)"""
    seen = []
    with contextlib.closing(LocalBlobs.create()) as blobs:
        structure, leaves = flatten((X, Y))
        fit = FitArguments(batch_size=64, epochs=epochs, shuffle=False)
        data = ArrayData(blobs.put_arrays(leaves), structure, len(X))
        source = open_source(data, fit, blobs, 0, training=True)
        flavor = named("keras")
        flavor.build(made, source.element_spec)
        with contextlib.closing(Session(Trainable(flavor, made), comm, options or {})) as session:
            try:
                notes = session.prepare(source, source)
            except CaptureError as error:
                return {"error": str(error)}

            def on_batch(step, logs):
                if hooks:
                    seen.append(float(session.peek(logs)[0]["loss"]))
                return True

            logs = [session.train(source, epoch, on_batch) for epoch in range(epochs)]
            validated = session.evaluate(source, 0)
    return {
        "notes": notes,
        "logs": logs,
        "seen": seen,
        "validated": validated,
        "weights": [w.tolist() for w in made.get_weights()],
        "iterations": int(made.optimizer.iterations),
    }


def main(out, name):
    comm, _ = choose(name, int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"]))
    inexact = {"allow_inexact": "true"}
    found = {
        "inexact": train(comm, model(nothing, loss=of_the_batch)),
        "allowed": train(comm, model(nothing, loss=of_the_batch), inexact),
        "dropout": train(comm, model(lambda: [keras.layers.Dropout(0.5)], metrics=["mae"])),
        "local": train(comm, model(lambda: [keras.layers.BatchNormalization()]), {"batch_norm": "local"}),
        "metric": train(comm, model(nothing, metrics=[Largest()])),
        "hooked": train(comm, model(nothing), hooks=True),
        "half": train(comm, model(nothing), {"fp16_allreduce": "true"}),
        "per_worker": train(comm, model(nothing), {"batch": "per-worker", "lr_scale": "none"}, epochs=2),
        "scaled": train(comm, model(nothing), {"batch": "per-worker", "lr_scale": "linear"}, epochs=2),
    }
    Path(f"{out}-{comm.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    with patches("keras"):
        main(*sys.argv[1:])
