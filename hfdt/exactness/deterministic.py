"""Patches that switch dropout and noise off, so that two runs of a batch can be compared."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from fdt.patches import Patch, patched


@contextlib.contextmanager
def without_randomness(flavor: str) -> Iterator[None]:
    """Replace random functions: dropout is the identity, normal draws are their mean, uniform draws the middle."""
    patches = [
        Patch(tf.nn, "dropout", lambda original, x, *args, **kwargs: tf.convert_to_tensor(x)),
        Patch(tf.nn.experimental, "stateless_dropout", lambda original, x, *args, **kwargs: tf.convert_to_tensor(x)),
        Patch(tf.random, "normal", _normal),
        Patch(tf.random, "uniform", _uniform),
    ]
    if flavor == "keras":
        from fdt.compat.keras3 import random

        patches += [
            Patch(random, "dropout", lambda original, inputs, *args, **kwargs: inputs),
            Patch(random, "normal", _normal),
            Patch(random, "truncated_normal", _normal),
            Patch(random, "uniform", _uniform),
        ]
    with patched(patches):
        yield


def _normal(original: Any, shape: Any, mean: Any = 0.0, *args: Any, **kwargs: Any) -> Any:
    drawn = original(shape, mean, *args, **kwargs)
    return tf.zeros_like(drawn) + tf.cast(mean, drawn.dtype)


def _uniform(original: Any, shape: Any, minval: Any = 0, maxval: Any = None, *args: Any, **kwargs: Any) -> Any:
    drawn = original(shape, minval, maxval if maxval is not None else 1.0, *args, **kwargs)
    top = tf.cast(maxval if maxval is not None else 1, drawn.dtype)
    return tf.zeros_like(drawn) + (tf.cast(minval, drawn.dtype) + top) / 2 if drawn.dtype.is_floating else drawn
