"""Shared-memory collectives: where the ranks of one host write vectors for each other, and how these make one.

For most a rank has two mapped files, used in turn, and each rank makes the whole for itself. A rank that writes its
vector of the next collective but one has been answered that all others came to the next; so they have read this one. A
large sum is rank 0's to add, as adding it in every rank takes longer than one more message; a rank has one file for it.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fdt.errors import WorkerError
from fdt.process_group.streams import SharedBuffer, Vector

EACH_BYTES = 1 << 20  # a larger sum is added by rank 0 alone


class Combined(Protocol):
    """One collective. `vector`: this rank's. `whole`: as long as the result. `each`: does each rank make that itself?

    `kind`: what must be the same on every rank, besides the length of the whole.
    """

    vector: Vector
    whole: Vector
    each: bool
    kind: str

    def like(self, rank: int) -> Vector:
        """Return any vector as long as that rank's."""
        ...

    def of(self, parts: Sequence[Vector]) -> Vector:
        """Return the whole, a new vector, of the ranks' vectors in their order."""
        ...


class Sum:
    """The sum of the ranks' vectors, the same to the bit wherever it is made: rank by rank, in order."""

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
    """The ranks' vectors end to end. `counts`: their lengths."""

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
            raise WorkerError("an all_gather must have every rank's part. Received: none of a rank that has ended")
        return whole


class SharedMemoryAllReduce:
    """`number`: of collectives that are complete; all ranks count alike. `buffers`: the one file of each rank."""

    def __init__(self, directory: Path, size: int) -> None:
        self._alternating = [
            [SharedBuffer(directory / f"adding-{rank}-{turn}") for rank in range(size)] for turn in range(2)
        ]
        self.buffers = [SharedBuffer(directory / f"slot-{rank}") for rank in range(size)]
        self.number = 0

    def wanted(self, name: str, combined: Combined | None) -> list[Any]:
        """Return what all ranks must be at; None: a broadcast. The number tells one that was left from the next."""
        form = [0, ""] if combined is None else [len(combined.whole), combined.kind]
        return [name, *form, self.number]

    def write(self, rank: int, vector: Vector, combined: Combined) -> None:
        self._buffer(rank, combined).write(vector)

    def read(self, rank: int, like: Vector, combined: Combined) -> Vector:
        """Return what the rank has written: a view, good until the next collective begins."""
        return self._buffer(rank, combined).read(like)

    def total(self, ranks: Iterable[int], combined: Combined) -> Vector:
        """Return the whole of what the ranks have written."""
        return combined.of([self.read(rank, combined.like(rank), combined) for rank in ranks])

    def _buffer(self, rank: int, combined: Combined) -> SharedBuffer:
        return (self._alternating[self.number % 2] if combined.each else self.buffers)[rank]
