"""The Comm on mpi4py, which needs wheels only and no compiler.

The tensors of a dtype are packed into one array for MPI_Allreduce, MPI_Reduce_scatter_block or MPI_Allgather. A
multicast is an MPI_Bcast.
"""

from typing import Any

import numpy as np
from mpi4py import MPI

from fdt.typing import Vector
from hfdt.collectives.adapters import HALVES, Matrix, Packed
from hfdt.collectives.base import PackedComm


class MpiComm(PackedComm):
    """The Comm and multicast transport of MPI's ranks."""

    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD.Dup()  # a context of its own: no other library's messages can match ours
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()
        self._packed = Packed(self._reduce, self.rank, self.size, self._scatter, self._gather)
        self._teams: dict[tuple[int, ...], Any] = {}
        self.sent_bytes = 0  # by multicast

    def multicast(self, packet: Vector, root: int, members: tuple[int, ...]) -> Vector:
        """Broadcast by MPI_Bcast in a communicator of the members, which is created at their first multicast."""
        if members not in self._teams:
            self._teams[members] = self._world.Create_group(self._world.Get_group().Incl(members))
        if root == self.rank:
            self.sent_bytes += packet.nbytes
        # A receiver's packet only gives shape and dtype: it may be a view of data that this rank has yet to send.
        buffer = np.ascontiguousarray(packet) if root == self.rank else np.empty_like(packet, order="C")
        self._teams[members].Bcast(buffer, root=members.index(root))
        return buffer

    def close(self) -> None:
        """Do nothing: multicasts hold no resources of their own."""

    def _reduce(self, vector: Vector, name: str) -> Vector:
        if vector.dtype in HALVES:
            return self._reduce_halves(vector)
        total = np.empty_like(vector)
        self._world.Allreduce(vector, total, op=MPI.SUM)
        return total

    def _scatter(self, rows: Matrix) -> Vector:
        own = np.empty(rows.shape[1], rows.dtype)
        self._world.Reduce_scatter_block(rows, own, op=MPI.SUM)
        return own

    def _gather(self, own: Vector) -> Matrix:
        rows = np.empty((self.size, own.size), own.dtype)
        self._world.Allgather(own, rows)
        return rows

    def _reduce_halves(self, vector: Vector) -> Vector:
        """Add 16-bit floats in float32: each rank adds a part of the elements, which all ranks send it."""
        sent = np.zeros(-(-len(vector) // self.size) * self.size, vector.dtype)
        sent[: len(vector)] = vector
        received, whole = np.empty_like(sent), np.empty_like(sent)
        self._world.Alltoall(sent.view(np.uint16), received.view(np.uint16))
        with np.errstate(over="ignore"):
            total = received.reshape(self.size, -1).astype(np.float32).sum(axis=0).astype(vector.dtype)
        self._world.Allgather(total.view(np.uint16), whole.view(np.uint16))
        return whole[: len(vector)]
