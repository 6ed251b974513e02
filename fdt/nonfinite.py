"""Are gradients numbers?"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Tensor = Any


def all_finite(gradients: Sequence[Tensor]) -> Tensor:
    """One pass over each: a sum that holds NaN or infinity is neither a number nor finite itself."""
    return tf.math.is_finite(tf.add_n([tf.reduce_sum(tf.cast(g, tf.float32)) for g in gradients] or [tf.constant(0.0)]))
