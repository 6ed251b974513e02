"""What an exchange stands on: adding tensors over ranks."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from hfdt.algorithm import Multicast

Tensor = Any  # tf.Tensor


class Comm(Protocol):
    """All ranks of a run. Every rank calls `sum` with the same names in the same order."""

    rank: int
    size: int

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        """Each tensor added over all ranks; inside a tf.function and eagerly.

        Tensors are dense numbers of any dtypes; shapes and dtypes agree across ranks. `name` must not be in use by
        another `sum` of the same step. No gradient is defined: who differentiates wraps it
        (hfdt/exactness/batchnorm.py).
        """
        ...


class MulticastTransport(Multicast, Protocol):
    """Ranks that multicast, and count what they send."""

    sent_bytes: int  # of packets, each counted once, where it was sent

    def close(self) -> None:
        """What it holds for multicasts alone is given back."""
        ...


def by_dtype(
    tensors: Sequence[Tensor], name: str, add: Callable[[list[Tensor], str], Sequence[Tensor]]
) -> list[Tensor]:
    """Call `add` once for the tensors of each dtype, in a fixed order, and put the results back in their places."""
    tensors = [tf.convert_to_tensor(t) for t in tensors]
    out: list[Tensor] = list(tensors)
    for dtype in sorted({t.dtype.name for t in tensors}):
        places = [i for i, t in enumerate(tensors) if t.dtype.name == dtype]
        for place, total in zip(places, add([tensors[i] for i in places], f"{name}.{dtype}"), strict=True):
            out[place] = total
    return out
