"""Image data for benchmarks that train Keras models in their own process, and a model's accuracy on them."""

from functools import cache
from typing import Any

import numpy as np


@cache
def images(name: str) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """`keras.datasets` by name: rows x height x width x channels of float32 in [0, 1], labels of int32."""
    import keras

    (x, y), (tx, ty) = getattr(keras.datasets, name).load_data()
    x, tx = (a.reshape(len(a), *a.shape[1:3], -1).astype("float32") / 255 for a in (x, tx))
    return (x, y.ravel().astype("int32")), (tx, ty.ravel().astype("int32"))


def accuracy(model: Any, x: Any, y: Any) -> float:
    blocks = range(0, len(x), 1000)
    right = [np.argmax(model(x[i : i + 1000], training=False), axis=1) == y[i : i + 1000] for i in blocks]
    return float(np.mean(np.concatenate(right)))
