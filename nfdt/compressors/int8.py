"""8-bit integers with one scale for 1024 elements: a quarter of the bytes.

Values are rounded to the nearest of 255 steps between the largest magnitude and its negative. Error feedback sends the
rest later: Seide et al., 2014 (1-bit SGD); Tang et al., 2019, arXiv:1905.05957, for both directions.
"""

from collections.abc import Sequence

import numpy as np

from fdt.typing import Array, Vector
from nfdt.compressors import Spec, TensorCompressor

BLOCK = 1024
STEPS = np.float32(127)


def compressor() -> TensorCompressor:
    """Make the compressor. It has no parameters."""
    return TensorCompressor(specs, encode, decode)


def specs(elements: int) -> list[Spec]:
    """Return the specs of the integers and of the blocks' scales."""
    return [((elements,), "int8"), ((-(-elements // BLOCK),), "float32")]


def encode(vector: Vector) -> list[Array]:
    """Return [integers, scales]. A block with a value that is not finite has the scale NaN."""
    blocks = np.zeros((-(-vector.size // BLOCK), BLOCK), np.float32)
    blocks.reshape(-1)[: vector.size] = vector
    scales = np.abs(blocks).max(axis=1) / STEPS
    scales[~np.isfinite(scales)] = np.nan
    divisors = np.where(scales > 0, scales, np.float32(1))[:, None]  # of NaN and of 0: 1
    with np.errstate(invalid="ignore"):
        integers = np.clip(np.rint(blocks / divisors), -STEPS, STEPS)
    integers[np.isnan(scales)] = 0
    return [integers.astype(np.int8).reshape(-1)[: vector.size], scales]


def decode(arrays: Sequence[Array], elements: int) -> Vector:
    """Return the vector in float32."""
    integers, scales = arrays
    blocks = np.zeros((len(scales), BLOCK), np.float32)
    blocks.reshape(-1)[:elements] = integers
    vector: Vector = (blocks * scales[:, None]).reshape(-1)[:elements]
    return vector
