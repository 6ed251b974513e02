"""Sketch of a variable's values in few numbers, linear in the values.

So a difference of sketches is the sketch of the difference.
"""

import functools
from typing import Any

import numpy as np

SIZE = 4096


def sketch(values: Any) -> np.ndarray:
    """Sketch `values` of any shape and float dtype: float64 of shape [min(size, SIZE)].

    Up to SIZE values are kept unchanged. Of more, values get random signs and are summed in SIZE buckets. The sketch's
    norm
    then estimates that of the values with a relative standard deviation of sqrt(2 / SIZE) = 2.2 %.

    Source: M. Charikar, K. Chen, M. Farach-Colton, Finding frequent items in data streams, 2002 (count sketch).
    """
    flat: np.ndarray = np.asarray(values).astype(np.float64).reshape(-1)
    if flat.size <= SIZE:
        return flat
    padded = np.zeros(-(-flat.size // SIZE) * SIZE)
    padded[: flat.size] = flat * _signs(flat.size)
    added: np.ndarray = padded.reshape(-1, SIZE).sum(0)
    return added


@functools.lru_cache(maxsize=64)
def _signs(size: int) -> np.ndarray:
    signs: np.ndarray = np.random.Generator(np.random.PCG64(size)).integers(0, 2, size, np.int8) * 2 - 1
    return signs.astype(np.int8)
