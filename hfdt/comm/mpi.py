"""mpi4py: wheels only, no compiler. One packed vector a dtype goes through MPI_Allreduce."""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from hfdt.comm.base import Tensor
from hfdt.comm.packed import Packed, Vector


class MpiComm:
    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD.Dup()  # its own context: nobody else's messages meet ours
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()
        self._packed = Packed(self._reduce)

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return self._packed.sum(tensors, name)

    def _reduce(self, vector: Vector, name: str) -> Vector:
        total = np.empty_like(vector)
        self._world.Allreduce(vector, total, op=MPI.SUM)
        return total
