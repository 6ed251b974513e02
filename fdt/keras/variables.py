"""What Keras wraps: the tf.Variable inside a variable, the optimizer inside another."""

from typing import Any

import tensorflow as tf


def tensor_variable(variable: Any) -> tf.Variable:
    """The tf.Variable inside a Keras 3 Variable or a tf_keras AutoCastVariable; a tf.Variable itself."""
    for attribute in ("_value", "_variable"):
        inner = getattr(variable, attribute, None)
        if isinstance(inner, tf.Variable):
            return inner
    return variable


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer inside a LossScaleOptimizer; any other itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)
