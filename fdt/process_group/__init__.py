"""The process group of a replicated script: its interface for both engines, and its shared-memory collectives.

The ranks of one host exchange vectors through files. For small sums and for gathers, each rank has two mapped files,
used alternately, and usually computes the result for itself. Two files suffice: a rank that writes its vector of
collective n+2 has been notified that all ranks have reached n+1, so all have read its vector of n. Rank 0 alone adds a
larger sum, as one more message takes less time than the same addition in every rank. Each rank has one further file for
such sums and for pushes. Rank 0 is root.py, the others peer.py.
"""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from ml_dtypes import bfloat16

from fdt.errors import WorkerError
from fdt.process_group.readings import Moments
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

    def of(self, parts: Sequence[Vector]) -> Vector:
        """Return the result, a new vector.

        Args:
            parts: The ranks' vectors in the order of ranks.
        """


class Sum:
    """The sum of the ranks' vectors, added in the order of ranks, so that it is bit-identical on all ranks.

    Floats of 16 bits are added in float32, and the sum is rounded once.
    """

    def __init__(self, vector: Vector) -> None:
        self.vector = self.whole = vector
        self.each, self.kind = vector.nbytes <= EACH_BYTES, vector.dtype.str

    def like(self, rank: int) -> Vector:
        """Implement Combined."""
        return self.vector

    def of(self, parts: Sequence[Vector]) -> Vector:
        """Implement Combined."""
        first, *others = parts
        kind = np.float32 if first.dtype in (np.float16, bfloat16) else first.dtype
        with np.errstate(over="ignore", invalid="ignore"):  # TensorFlow gives Inf and NaN without a warning, too
            total: Vector = np.add(first, others[0], dtype=kind) if others else first.astype(kind)
            for vector in others[1:]:
                total += vector
            return total.astype(first.dtype, copy=False)


class AllGather:
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

    def complete(self) -> None:
        """Count a complete collective."""
        self.number += 1

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


Header = Mapping[str, Any]  # JSON


@dataclass(frozen=True)
class RankPush:
    """A vector that a rank has sent to rank 0 by `push_pull`.

    Args:
        rank: The sender.
        header: What the sender states about the vector; JSON.
        vector: One-dimensional.
        answer: Sends the sender its answer, (vector, header). The receiver calls it once.
    """

    rank: int
    header: Header
    vector: Vector
    answer: Callable[[Vector, Header], None]


class ReplicaGroup(Protocol):
    """The collectives of a replicated script, and its pushes.

    Every rank calls the same collectives in the same order. A rank that calls another one, or has ended, causes a
    WorkerError on rank 0, which ends the run.
    """

    rank: int
    size: int
    sent_bytes: int  # bytes of this rank's own vectors

    def serve_by(self, serve: Callable[[RankPush], None] | None) -> None:
        """On rank 0, let `serve` answer the pushes that arrive during a collective. None: such a push is an error."""

    def all_reduce(self, vector: Vector, name: str) -> Vector:
        """Return the sum over ranks of a vector.

        Args:
            vector: One-dimensional, of one length and dtype on every rank.
            name: The collective's name, for errors.
        """

    def all_gather(self, vector: Vector, counts: Sequence[int], name: str) -> Vector:
        """Return the ranks' vectors end to end, in the order of ranks.

        Args:
            vector: This rank's vector, of `counts[rank]` elements.
            counts: The length of each rank's vector; the same on every rank.
            name: The collective's name, for errors.
        """

    def broadcast(self, value: Any, name: str) -> Any:
        """Return rank 0's `value`, which must be JSON."""

    def barrier(self, name: str) -> None:
        """Return when every rank has called it."""

    def push_pull(self, vector: Vector, header: Header) -> tuple[Vector, Header]:
        """Send rank 0 a vector, wait, and return its answer. No other rank takes part.

        Rank 0 answers by `serve_by`, or after a call of `pushes`. It serves its own pushes at once.

        Args:
            vector: One-dimensional: for example a worker's gradients, concatenated.
            header: What rank 0 needs to know about the vector; JSON.

        Returns:
            The answer's vector, for example the new weights, and its header. A rank has at most one push under way.
        """

    def next_moment(self) -> None:
        """Note that the script comes to its next step."""

    def rank_0_reads(self, place: str, number: Any) -> Any:
        """Return the number that rank 0's script reads at `place` after as many steps. No collective.

        Rank 0 does not wait. Another rank waits until rank 0 is there; where it is at a later step or a collective and
        did not read there, the result is `number`. Only where pushes are served (`serve_by`).

        Args:
            place: What names the same place of the script on all ranks.
            number: What this rank reads; JSON.
        """

    def pushes(self) -> list[RankPush]:
        """Return the pushes that have arrived, for the caller to answer, without waiting. Only rank 0 receives any."""


class Collectives(abc.ABC):
    """The part of the collectives that rank 0's group and its peers' groups share."""

    rank: int
    _serve: Callable[[RankPush], None] | None = None
    sent_bytes = 0
    _readings: Moments

    def next_moment(self) -> None:
        """Implement ReplicaGroup."""
        self._readings.advance()

    def serve_by(self, serve: Callable[[RankPush], None] | None) -> None:
        """Implement ReplicaGroup."""
        self._serve = serve

    def all_reduce(self, vector: Vector, name: str) -> Vector:
        """Implement ReplicaGroup."""
        return self._whole(Sum(np.ascontiguousarray(vector)), name)

    def all_gather(self, vector: Vector, counts: Sequence[int], name: str) -> Vector:
        """Implement ReplicaGroup."""
        return self._whole(AllGather(np.ascontiguousarray(vector), counts), name)

    def barrier(self, name: str) -> None:
        """Implement ReplicaGroup."""
        self.broadcast(None, name)

    @abc.abstractmethod
    def broadcast(self, value: Any, name: str) -> Any:
        """Implement ReplicaGroup."""

    @abc.abstractmethod
    def _whole(self, combined: Combined, name: str) -> Vector:
        """Return the collective's result."""
