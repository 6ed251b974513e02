"""The ranks of a replicated script as a process group: the collectives that both engines give it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fdt.service.meeting import Meeting

Vector = npt.NDArray[Any]


class ReplicaGroup(Protocol):
    """The collectives of a replicated script. Every rank calls the same ones in the same order.

    Raises WorkerError on every rank when a rank calls another one, or has ended.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, vector: Vector, name: str) -> Vector:
        """Return the sum over ranks of a vector that has one length and dtype everywhere."""
        ...

    def all_gather(self, vector: Vector, counts: Sequence[int], name: str) -> Vector:
        """Return the ranks' vectors end to end. `counts`: the length of each."""
        ...

    def broadcast(self, value: Any, name: str) -> Any:
        """Return rank 0's `value`, which JSON can hold."""
        ...

    def barrier(self, name: str) -> None:
        """Return when every rank has called it."""
        ...


class MeetingGroup:
    """A ReplicaGroup over shared memory and sockets, without MPI: rank 0 is the user's own process.

    Args:
        meeting: Rank 0's side or another rank's.
        where: Returns the script's file and line, for errors.
    """

    def __init__(self, meeting: Meeting, where: Callable[[], str]) -> None:
        self._meeting, self._where = meeting, where
        self.rank, self.size = meeting.rank, meeting.size
        self.sent_bytes = 0
        self.calls = 0

    def all_reduce(self, vector: Vector, name: str) -> Vector:
        self.sent_bytes += vector.nbytes
        self.calls += 1
        return self._meeting.add(name, np.ascontiguousarray(vector), self._where)

    def all_gather(self, vector: Vector, counts: Sequence[int], name: str) -> Vector:
        padded = np.full(sum(counts), neutral(vector.dtype), vector.dtype)
        low = sum(counts[: self.rank])
        padded[low : low + counts[self.rank]] = vector
        return self.all_reduce(padded, name)

    def broadcast(self, value: Any, name: str) -> Any:
        return self._meeting.same(name, value, self._where)

    def barrier(self, name: str) -> None:
        self._meeting.same(name, None, self._where)


def neutral(dtype: Any) -> Any:
    """Return the number that changes no other when added: -0.0 keeps the sign of zero."""
    return -0.0 if np.dtype(dtype).kind in "fc" else 0
