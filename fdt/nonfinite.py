"""The non-finite guard: detection of NaN or infinity in gradients."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Tensor = Any


def all_finite(gradients: Sequence[Tensor]) -> Tensor:
    """Return a bool scalar: whether all gradients are finite.

    One sum over each gradient suffices: a sum with NaN or infinity among its terms is not finite.
    """
    return tf.math.is_finite(tf.add_n([tf.reduce_sum(tf.cast(g, tf.float32)) for g in gradients] or [tf.constant(0.0)]))
