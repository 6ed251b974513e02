"""The elements of largest magnitude of each pushed tensor, with their positions; the rest is sent later.

With 0.01 of the elements a push has a fiftieth of its bytes. Error feedback makes it converge as SGD does: Stich,
Cordonnier and Jaggi, 2018, arXiv:1809.07599; Lin et al., 2018, arXiv:1712.01887.
"""

import math
from collections.abc import Sequence

import numpy as np

from fdt.typing import Array, Vector
from nfdt.compressors import Spec, TensorCompressor


def compressor(fraction: float = 0.01) -> TensorCompressor:
    """Make the compressor.

    Args:
        fraction: The part of a tensor's elements that a push sends, above 0 and at most 0.5: a position has as many
            bytes as a value.
    """
    if not 0 < fraction <= 0.5:
        raise ValueError(f"topk: fraction must be above 0 and at most 0.5. Received: {fraction}")

    def count(elements: int) -> int:
        return math.ceil(fraction * elements)

    def specs(elements: int) -> list[Spec]:
        return [((count(elements),), "float32"), ((count(elements),), "uint32")]

    def encode(vector: Vector) -> list[Array]:
        sent = np.argpartition(np.abs(vector), -count(vector.size))[-count(vector.size) :]  # NaN counts as the largest
        return [vector[sent], sent.astype(np.uint32)]

    return TensorCompressor(specs, encode, decode, pulls=False)


def decode(arrays: Sequence[Array], elements: int) -> Vector:
    """Return the vector, with 0 for what was not sent. Raises IndexError for a position beyond its end."""
    values, sent = arrays
    vector = np.zeros(elements, values.dtype)
    vector[sent] = values
    return vector
