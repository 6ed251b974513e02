"""Ranks of a replica script: what one gives, where its script stands, and the sum come by the meeting.

Rank 0 is the user's own process, which no MPI has started, and every exchange is checked for being the same on all
ranks (fdt/service/meeting.py). Inside a step's graph the exchange is Python, as with mpi4py.
"""

from collections.abc import Callable, Sequence
from typing import Any

from fdt.service.meeting import Meeting
from hfdt.comm.base import Tensor
from hfdt.comm.packed import Packed, Vector


class ReplicaComm:
    """`where`: the script's file and line. `sent_bytes`: given so far. `failure`: what an exchange raised."""

    def __init__(self, meeting: Meeting, where: Callable[[], str]) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        self.sent_bytes = 0
        self.failure: Exception | None = None
        self._meeting, self._where = meeting, where
        self._packed = Packed(self._reduce)

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return self._packed.sum(tensors, name)

    def same(self, what: str, value: Any) -> Any:
        """Rank 0's `value` (JSON), on every rank."""
        return self._meeting.same(what, value, self._where)

    def _reduce(self, vector: Vector, name: str) -> Vector:
        self.sent_bytes += vector.nbytes
        try:
            return self._meeting.add(name, vector, self._where)
        except Exception as error:
            self.failure = error  # inside a graph TensorFlow puts its own in place of it
            raise
