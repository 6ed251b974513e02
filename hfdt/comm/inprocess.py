"""Ranks as threads of one process, for tests. Checks what MPI would only hang on: names that differ between ranks."""

import threading
from collections.abc import Sequence

import numpy as np

from hfdt.comm.base import Tensor
from hfdt.comm.packed import Packed, Vector

WAIT_S = 30.0


class World:
    """`size` ranks that meet in memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.names: list[str] = [""] * size
        self.vectors: list[Vector] = [np.empty(0)] * size
        self.barrier = threading.Barrier(size)

    def comm(self, rank: int) -> "InProcessComm":
        return InProcessComm(self, rank)


class InProcessComm:
    def __init__(self, world: World, rank: int) -> None:
        self._world, self.rank, self.size = world, rank, world.size
        self._packed = Packed(self._reduce)

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return self._packed.sum(tensors, name)

    def _reduce(self, vector: Vector, name: str) -> Vector:
        world = self._world
        world.names[self.rank], world.vectors[self.rank] = name, vector
        world.barrier.wait(WAIT_S)
        if len(set(world.names)) > 1:
            raise RuntimeError(f"all ranks must exchange the same thing. Received: {world.names}")
        total: Vector = np.sum(np.stack(world.vectors), axis=0, dtype=vector.dtype)
        world.barrier.wait(WAIT_S)
        return total
