"""Captures one model as `fit` does and rebuilds it as a worker does; prints seconds and bytes as a `bench` line."""

import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from client_shim.capture.program import capture_program
from fdt.blobs import LocalBlobs
from fdt.job import State
from fdt.keras import flavor_of
from fdt.trainable import Trainable, build


def transformer() -> keras.Model:
    """24 layers of width 256, 4 heads, over 64 tokens."""
    tokens = keras.Input((64,))
    x = keras.layers.Embedding(1000, 256)(tokens)
    for _ in range(24):
        attended = keras.layers.MultiHeadAttention(4, 64)(x, x)
        x = keras.layers.LayerNormalization()(x + attended)
        hidden = keras.layers.Dense(1024, activation="gelu")(x)
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(256)(hidden))
    return keras.Model(tokens, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(x)))


def make(name: str) -> keras.Model:
    if name == "Transformer":
        return transformer()
    return getattr(keras.applications, name)(weights=None, input_shape=(64, 64, 3), classes=10)


def timed(call: Callable[..., Any], *args: Any) -> tuple[tuple[float, float], Any]:
    """Return seconds of wall time and of CPU, and the result of `call`."""
    start, cpu = time.perf_counter(), time.process_time()
    result = call(*args)
    return (time.perf_counter() - start, time.process_time() - cpu), result


def main(name: str, folder: Path) -> dict[str, Any]:
    model, blobs = make(name), LocalBlobs(folder)
    model.compile("adam", "mse", metrics=["mae"])
    flavor = flavor_of(model)
    flavor.build(model, (tf.TensorSpec([None, *model.input_shape[1:]]), tf.TensorSpec([None, 10])))
    captured, (program, _) = timed(capture_program, flavor, model, blobs)
    gc.freeze()  # as in a worker (fdt/environment.py)
    rebuilt, there = timed(build, program, blobs)

    def copy() -> int:
        here = Trainable(flavor, model)
        state = State(blobs.put_arrays(here.model_arrays()), blobs.put_arrays(here.optimizer_arrays()))
        there.load(state, blobs)
        return int(state.model.nbytes + state.optimizer.nbytes)

    copied, nbytes = timed(copy)
    sizes = {"objects": program.objects.nbytes, "weights": nbytes, "layers": len(model.layers)}
    return {"capture": captured, "rebuild": rebuilt, "copy": copied, **sizes}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print("bench", json.dumps(main(sys.argv[1], Path(name))))
