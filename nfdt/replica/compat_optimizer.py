"""Adapter that gives Keras's attributes to a `tf.compat.v1` optimizer outside of sessions (eager or tf.function)."""

from typing import Any

import tensorflow as tf

from fdt.compat.sessions import Optimizer


class CompatOptimizer:
    """View of a `tf.compat.v1` optimizer.

    `learning_rate` is the optimizer's; `iterations` is the global step that the script counts with it, if any.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        counted = getattr(optimizer, "_fdt_counted", None)  # session_optimizers.py
        with tf.init_scope():
            self.iterations = tf.Variable(0, dtype=tf.int64, trainable=False) if counted is None else counted

    @property
    def learning_rate(self) -> Any:
        rate = next(
            (getattr(self._optimizer, n) for n in ("_lr", "_learning_rate") if hasattr(self._optimizer, n)), 1.0
        )
        return rate() if callable(rate) else rate


def looked_at(optimizer: Any) -> Any:
    """Return the optimizer with Keras's attributes: Keras's own unchanged, others wrapped."""
    if not isinstance(optimizer, Optimizer):
        return optimizer
    return type(type(optimizer).__name__, (CompatOptimizer,), {})(optimizer)  # error messages name the class
