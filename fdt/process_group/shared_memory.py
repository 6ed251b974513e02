"""Shared-memory collectives: files through which the ranks of one host exchange vectors, and how the vectors combine.

For small sums and for gathers, each rank has two mapped files, used alternately, and usually computes the result for
itself. Two files suffice: a rank that writes its vector of collective n+2 has been notified that all ranks have reached
n+1, so all have read its vector of n. Rank 0 alone adds a larger sum, as one more message takes less time than the same
addition in every rank. Each rank has one further file for such sums and for pushes.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fdt.errors import WorkerError
from fdt.process_group.streams import SharedBuffer
from fdt.typing import Vector

EACH_BYTES = 1 << 20  # a larger sum is added by rank 0 alone


class Combined(Protocol):
    """One collective: this rank's contribution and how contributions combine.

    Attributes:
        vector: This rank's vector, one-dimensional.
        whole: Any vector of the result's length and dtype.
        each: Whether each rank computes the result for itself.
        kind: What must be the same on every rank, besides the length of `whole`.
    """

    vector: Vector
    whole: Vector
    each: bool
    kind: str

    def like(self, rank: int) -> Vector:
        """Return any vector of the length and dtype of `rank`'s."""
        ...

    def of(self, parts: Sequence[Vector]) -> Vector:
        """Return the result, a new vector.

        Args:
            parts: The ranks' vectors in the order of ranks.
        """
        ...


class Sum:
    """The sum of the ranks' vectors, added in the order of ranks, so that it is bit-identical on all ranks."""

    def __init__(self, vector: Vector) -> None:
        self.vector = self.whole = vector
        self.each, self.kind = vector.nbytes <= EACH_BYTES, vector.dtype.str

    def like(self, rank: int) -> Vector:
        """Implement Combined."""
        return self.vector

    def of(self, parts: Sequence[Vector]) -> Vector:
        """Implement Combined."""
        first, *others = parts
        total: Vector = first + others[0] if others else first.copy()
        for vector in others[1:]:
            total += vector
        return total


class Gather:
    """The ranks' vectors end to end. `counts`: their lengths, by rank."""

    each = True

    def __init__(self, vector: Vector, counts: Sequence[int]) -> None:
        self.vector, self._counts = vector, counts
        self.whole = np.empty(sum(counts), vector.dtype)
        self.kind = f"{vector.dtype.str} of {list(counts)}"

    def like(self, rank: int) -> Vector:
        """Implement Combined."""
        return np.empty(self._counts[rank], self.vector.dtype)

    def of(self, parts: Sequence[Vector]) -> Vector:
        """Implement Combined."""
        whole: Vector = np.concatenate(parts)
        if len(whole) != len(self.whole):
            raise WorkerError("an all_gather needs every rank's part, and a rank has ended")
        return whole


class SharedMemoryAllReduce:
    """The ranks' mapped files and the number of the current collective.

    Attributes:
        number: How many collectives are complete; all ranks count alike.
        buffers: For each rank, the file for large sums and pushes.
    """

    def __init__(self, directory: Path, size: int) -> None:
        self._alternating = [
            [SharedBuffer(directory / f"adding-{rank}-{turn}") for rank in range(size)] for turn in range(2)
        ]
        self.buffers = [SharedBuffer(directory / f"slot-{rank}") for rank in range(size)]
        self.number = 0

    def wanted(self, name: str, combined: Combined | None) -> list[Any]:
        """Return the description that must be the same on all ranks; `combined` is None for a broadcast.

        The number distinguishes a collective from an earlier one that was interrupted.
        """
        form = [0, ""] if combined is None else [len(combined.whole), combined.kind]
        return [name, *form, self.number]

    def write(self, rank: int, vector: Vector, combined: Combined) -> None:
        """Write the rank's vector into its file."""
        self._buffer(rank, combined).write(vector)

    def read(self, rank: int, like: Vector, combined: Combined) -> Vector:
        """Return the vector that the rank has written: a view, valid until the next collective begins."""
        return self._buffer(rank, combined).read(like)

    def total(self, ranks: Iterable[int], combined: Combined) -> Vector:
        """Return the result, computed from the vectors that the ranks have written."""
        return combined.of([self.read(rank, combined.like(rank), combined) for rank in ranks])

    def _buffer(self, rank: int, combined: Combined) -> SharedBuffer:
        return (self._alternating[self.number % 2] if combined.each else self.buffers)[rank]
