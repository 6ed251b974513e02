"""TensorFlow's functions for the operations of a traced algorithm (nfdt/tree.py), by the operations' names."""

from collections.abc import Callable

import tensorflow as tf

from fdt.typing import Tensor


def _alike(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Wrap `function`: a number or a float32 scalar (tau, mu, ...) is converted to the type of the other operand.

    These scalars and results of them alone are float32 whatever the type of the weights is. So where both operands are
    0-d and their types differ, the float32 one is such a scalar, and the other one is of a 0-d weight.
    """

    def call(a: Tensor, b: Tensor) -> Tensor:
        if not (tf.is_tensor(a) and tf.is_tensor(b)):
            kind = (a if tf.is_tensor(a) else b).dtype
            a, b = tf.convert_to_tensor(a, kind), tf.convert_to_tensor(b, kind)
        elif a.dtype != b.dtype:
            first = a.shape.rank == 0 and (b.shape.rank != 0 or a.dtype == tf.float32)
            a, b = (tf.cast(a, b.dtype), b) if first else (a, tf.cast(b, a.dtype))
        return function(a, b)

    return call


CALLS: dict[str, Callable[..., Tensor]] = {
    "add": _alike(lambda a, b: a + b),
    "sub": _alike(lambda a, b: a - b),
    "mul": _alike(lambda a, b: a * b),
    "div": _alike(lambda a, b: a / b),
    "pow": _alike(lambda a, b: a**b),
    "abs": tf.abs,
    "total": tf.reduce_sum,
    "minimum": _alike(tf.minimum),
    "maximum": _alike(tf.maximum),
}
