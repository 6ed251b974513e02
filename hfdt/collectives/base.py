"""The interface of collectives: sums and gathers of tensors over ranks, and multicasts; and the Comm of one rank."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fdt.typing import Tensor
from hfdt.algorithm import Multicast

Collective = Callable[[Sequence[Tensor], str], list[Tensor]]  # (tensors, name) -> a tensor for each


class Comm(Protocol):
    """The process group of a run. Every rank makes the same calls, by name, in the same order."""

    rank: int
    size: int

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        """Add each tensor over all ranks, inside a tf.function or eagerly.

        Args:
            tensors: Dense numeric tensors. Shapes and dtypes agree across ranks.
            name: The name of the exchange, which no other exchange of the same step uses.

        Returns:
            The sums, with the shapes and dtypes of `tensors`. They have no gradient: a caller that differentiates
                defines one (hfdt/exactness/batchnorm.py).
        """

    def reduce_scatter(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        """Add each tensor over all ranks, and return this rank's part of each sum.

        Args:
            tensors: Dense numeric vectors, whose length is a multiple of `size`.
            name: As for `sum`.

        Returns:
            Elements [rank * n, (rank + 1) * n) of each sum, where n is its length / size.
        """

    def all_gather(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        """Concatenate each vector over all ranks, in the order of ranks. Lengths agree across ranks."""

    def pause(self) -> None:
        """Stop the threads that wait for exchanges, which take CPU time. Every rank calls it, as it does `resume`."""

    def resume(self) -> None:
        """Make exchanges possible again. No effect unless paused."""


class WithoutThreads:
    """A Comm that exchanges in the thread of its caller: there is nothing to pause."""

    def pause(self) -> None:
        """Implement Comm."""

    resume = pause


class PackedComm(WithoutThreads):
    """The collectives of a Comm that exchanges tensors as one vector (Packed, hfdt/collectives/adapters.py)."""

    _packed: Any

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        added: list[Tensor] = self._packed.sum(tensors, name)
        return added

    def reduce_scatter(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        parts: list[Tensor] = self._packed.reduce_scatter(tensors, name)
        return parts

    def all_gather(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        whole: list[Tensor] = self._packed.all_gather(tensors, name)
        return whole


class MulticastTransport(Multicast, Protocol):
    """Ranks that multicast, and count the bytes that they send."""

    sent_bytes: int  # of packets that this rank sent, each counted once

    def close(self) -> None:
        """Release the resources that only multicasts need."""


def by_dtype(
    tensors: Sequence[Tensor], name: str, add: Callable[[list[Tensor], str], Sequence[Tensor]]
) -> list[Tensor]:
    """Call `add` once for the tensors of each dtype, in a fixed order; return the results in the order of `tensors`."""
    import tensorflow as tf  # the simulated Comm adds NumPy vectors without it

    tensors = [tf.convert_to_tensor(t) for t in tensors]
    out: list[Tensor] = list(tensors)
    for dtype in sorted({t.dtype.name for t in tensors}):
        places = [i for i, t in enumerate(tensors) if t.dtype.name == dtype]
        for place, total in zip(places, add([tensors[i] for i in places], f"{name}.{dtype}"), strict=True):
            out[place] = total
    return out


class SoloComm(WithoutThreads):
    """A process group of one rank."""

    rank, size = 0, 1

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        import tensorflow as tf

        return [tf.convert_to_tensor(t) for t in tensors]

    reduce_scatter = all_gather = sum
