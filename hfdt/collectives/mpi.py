"""mpi4py: wheels only, no compiler. One packed vector a dtype goes through MPI_Allreduce; multicasts are broadcasts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hfdt.collectives.base import Tensor
from hfdt.collectives.packed import Packed, Vector


class MpiComm:
    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD.Dup()  # its own context: nobody else's messages meet ours
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()
        self._packed = Packed(self._reduce)
        self._teams: dict[tuple[int, ...], Any] = {}
        self.sent_bytes = 0  # by multicast

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return self._packed.sum(tensors, name)

    def multicast(self, packet: Vector, root: int, members: tuple[int, ...]) -> Vector:
        """MPI_Bcast in the members' own communicator, which is made the first time they meet."""
        if members not in self._teams:
            self._teams[members] = self._world.Create_group(self._world.Get_group().Incl(members))
        if root == self.rank:
            self.sent_bytes += packet.nbytes
        # The receiver's packet only says what kind: it may be a view of what this rank has yet to send.
        buffer = np.ascontiguousarray(packet) if root == self.rank else np.empty_like(packet, order="C")
        self._teams[members].Bcast(buffer, root=members.index(root))
        return buffer

    def close(self) -> None:
        """Nothing is held for multicasts alone."""

    def _reduce(self, vector: Vector, name: str) -> Vector:
        total = np.empty_like(vector)
        self._world.Allreduce(vector, total, op=MPI.SUM)
        return total
