"""Unwrapping of Keras's objects: the tf.Variable inside a variable, the optimizer inside another; offsets of seeds."""

from typing import Any

import tensorflow as tf


def tensor_variable(variable: Any) -> tf.Variable:
    """Return the tf.Variable inside a Keras 3 Variable or a tf_keras AutoCastVariable; a tf.Variable itself."""
    for attribute in ("_value", "_variable"):
        inner = getattr(variable, attribute, None)
        if isinstance(inner, tf.Variable):
            return inner
    return variable


SEED_STRIDE = 1_000_003  # distance between the seeds of ranks, workers or blocks


def shifted_seed(seed: Any, number: int) -> Any:
    """Return a seed generator's state (a tensor or variable), shifted for rank `number`; 0 leaves it unchanged."""
    shift = tf.one_hot(0, tf.size(seed), on_value=number * SEED_STRIDE, off_value=0, dtype=tf.int64)
    return seed + tf.cast(tf.reshape(shift, tf.shape(seed)), seed.dtype)


def inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside a LossScaleOptimizer; any other optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def is_loss_scaled(optimizer: Any) -> bool:
    """Return whether the optimizer scales the loss, and so handles overflow by itself."""
    return any(kind.__name__.startswith(("LossScaleOptimizer", "BaseLossScale")) for kind in type(optimizer).__mro__)
