"""16-bit floats of IEEE 754: 11 bits of precision, up to 65504. Half the bytes; a larger value is sent in parts.

Micikevicius et al., 2018, arXiv:1710.03740.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fdt.typing import Array, Vector
from nfdt.compressors import TensorCompressor


def compressor() -> TensorCompressor:
    """Make the compressor. It has no parameters."""
    return rounding(np.float16)


def rounding(kind: Any) -> TensorCompressor:
    """Return a compressor that rounds to the dtype `kind`, a number of 16 bits."""
    largest = np.nextafter(np.array(np.inf, kind), np.array(0, kind))

    def encode(vector: Vector) -> list[Array]:
        with np.errstate(over="ignore"):
            narrow = vector.astype(kind)
        over = np.isinf(narrow) & np.isfinite(vector)
        narrow[over] = np.where(vector[over] > 0, largest, -largest)
        return [narrow]

    def decode(arrays: Sequence[Array], elements: int) -> Vector:
        return arrays[0].astype(np.float32)

    return TensorCompressor(lambda elements: [((elements,), np.dtype(kind).name)], encode, decode)
