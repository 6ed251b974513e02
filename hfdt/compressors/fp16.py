"""16-bit floats of IEEE 754: half the bytes, 11 bits of precision, up to 65504. A larger sum becomes infinity.

As Horovod's fp16 compression: Sergeev and Del Balso, 2018, arXiv:1802.05799. Error feedback is not needed: a rounded
element is wrong by one part in 2048.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fdt.typing import Tensor
from hfdt.compressors import Add, GradientCompressor, Shape


def compressor() -> GradientCompressor:
    """Make the compressor. It has no parameters and no state."""
    return rounding(tf.float16)


def rounding(kind: Any) -> GradientCompressor:
    """Return a compressor that rounds float32 and float64 to the dtype `kind`, a number of 16 bits."""

    def send(state: list[Tensor], gradients: list[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        return [tf.cast(g, kind) if g.dtype in (tf.float32, tf.float64) else g for g in gradients]

    def receive(
        state: list[Tensor], gradients: list[Tensor], shapes: Sequence[Shape], sums: list[Tensor], add: Add
    ) -> tuple[list[Tensor], list[Tensor]]:
        return [tf.cast(s, g.dtype) for s, g in zip(sums, gradients, strict=True)], state

    return GradientCompressor(lambda shapes: [], send, receive, lambda shapes: 2 * sum(map(math.prod, shapes)))
