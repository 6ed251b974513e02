"""The ranks of a replicated script as a process group: the one interface that both engines give to its code.

HFDT's ranks call collectives. NFDT's ranks push to rank 0, which is their parameter server, and call collectives where
all of them wait for each other. One class pair implements both (fdt/process_group/root.py, fdt/process_group/peer.py):
whether rank 0 serves pushes is
decided by `serve` alone.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fdt.process_group.shared_memory import Combined, Gather, Sum

Vector = npt.NDArray[Any]
Header = Mapping[str, Any]  # JSON


@dataclass(frozen=True)
class Push:
    """A vector that a rank has sent to rank 0 by `push_pull`.

    Args:
        rank: The sender.
        header: Of the vector.
        vector: One-dimensional.
        answer: Sends the sender its answer, (vector, header); to be called once.
    """

    rank: int
    header: Header
    vector: Vector
    answer: Callable[[Vector, Header], None]


class ReplicaGroup(Protocol):
    """The collectives of a replicated script, and its pushes.

    Every rank calls the same collectives in the same order. A rank that calls another one, or has ended, is a
    WorkerError on rank 0, which ends the run.
    """

    rank: int
    size: int
    sent_bytes: int  # of this rank's own vectors
    serve: Callable[[Push], None] | None
    """Rank 0: answers the pushes that arrive within a collective. None: a push there is an error."""

    def all_reduce(self, vector: Vector, name: str) -> Vector:
        """Return the sum over ranks of a vector that has one length and dtype everywhere."""
        ...

    def all_gather(self, vector: Vector, counts: Sequence[int], name: str) -> Vector:
        """Return the ranks' vectors, in the order of ranks, end to end.

        Args:
            vector: This rank's, of `counts[rank]` elements.
            counts: The length of each rank's; the same on every rank.
            name: Of the collective.
        """
        ...

    def broadcast(self, value: Any, name: str) -> Any:
        """Return rank 0's `value`, which JSON can hold."""
        ...

    def barrier(self, name: str) -> None:
        """Return when every rank has called it."""
        ...

    def push_pull(self, vector: Vector, header: Header) -> tuple[Vector, Header]:
        """Send rank 0 a vector, wait, and return its answer. No other rank takes part.

        Rank 0 answers in `serve`, or where it asks for `pushes`; what it pushes itself is served at once.

        Args:
            vector: A worker's gradients, say, end to end.
            header: What rank 0 is to be told of them; JSON.

        Returns:
            The new weights, say, and their header. At most one vector per rank is under way.
        """
        ...

    def pushes(self) -> list[Push]:
        """Return the pushes that have arrived, for the caller to answer; it does not wait. Only rank 0 gets any."""
        ...


class Collectives(abc.ABC):
    """What rank 0's side of a group and the others' sides have in common."""

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
        """Return the whole of the ranks' vectors."""
