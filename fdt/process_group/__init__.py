"""The process group of a replicated script: its interface for both engines, rank 0, peers, bootstrap."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fdt.process_group.shared_memory import Combined, Gather, Sum
from fdt.typing import Vector

Header = Mapping[str, Any]  # JSON


@dataclass(frozen=True)
class Push:
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
    serve: Callable[[Push], None] | None
    """On rank 0: answers the pushes that arrive during a collective. None: such a push is an error."""

    def all_reduce(self, vector: Vector, name: str) -> Vector:
        """Return the sum over ranks of a vector.

        Args:
            vector: One-dimensional, of one length and dtype on every rank.
            name: The collective's name, for errors.
        """
        ...

    def all_gather(self, vector: Vector, counts: Sequence[int], name: str) -> Vector:
        """Return the ranks' vectors end to end, in the order of ranks.

        Args:
            vector: This rank's vector, of `counts[rank]` elements.
            counts: The length of each rank's vector; the same on every rank.
            name: The collective's name, for errors.
        """
        ...

    def broadcast(self, value: Any, name: str) -> Any:
        """Return rank 0's `value`, which must be JSON."""
        ...

    def barrier(self, name: str) -> None:
        """Return when every rank has called it."""
        ...

    def push_pull(self, vector: Vector, header: Header) -> tuple[Vector, Header]:
        """Send rank 0 a vector, wait, and return its answer. No other rank takes part.

        Rank 0 answers in `serve`, or after a call of `pushes`. It serves its own pushes at once.

        Args:
            vector: One-dimensional: for example a worker's gradients, concatenated.
            header: What rank 0 needs to know about the vector; JSON.

        Returns:
            The answer's vector, for example the new weights, and its header. A rank has at most one push under way.
        """
        ...

    def pushes(self) -> list[Push]:
        """Return the pushes that have arrived, for the caller to answer, without waiting. Only rank 0 receives any."""
        ...


class Collectives(abc.ABC):
    """The part of the collectives that rank 0's group and its peers' groups share."""

    rank: int
    serve: Callable[[Push], None] | None = None
    sent_bytes = 0

    def all_reduce(self, vector: Vector, name: str) -> Vector:
        """Implement ReplicaGroup."""
        return self._whole(Sum(np.ascontiguousarray(vector)), name)

    def all_gather(self, vector: Vector, counts: Sequence[int], name: str) -> Vector:
        """Implement ReplicaGroup."""
        return self._whole(Gather(np.ascontiguousarray(vector), counts), name)

    def barrier(self, name: str) -> None:
        """Implement ReplicaGroup."""
        self.broadcast(None, name)

    @abc.abstractmethod
    def broadcast(self, value: Any, name: str) -> Any:
        """Implement ReplicaGroup."""

    @abc.abstractmethod
    def _whole(self, combined: Combined, name: str) -> Vector:
        """Return the collective's result."""
