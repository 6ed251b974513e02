"""A Comm whose ranks are threads of one process, for tests and benchmarks.

It reports mistakes at which MPI would only hang: exchange names that differ between ranks, and a rank that failed.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from fdt.typing import Vector
from hfdt.collectives.adapters import HALVES, Packed
from hfdt.collectives.base import PackedComm

WAIT_S = 100.0  # each may have to trace a model first, one after another, on a machine that has other things to do
Result = TypeVar("Result")


class InProcessWorld:
    """`size` ranks that exchange vectors in memory, and wait for each other at most `wait_s` seconds."""

    def __init__(self, size: int, wait_s: float = WAIT_S) -> None:
        self.size, self.wait_s = size, wait_s
        self.names: list[str] = [""] * size
        self.vectors: list[Vector] = [np.empty(0)] * size
        self.barrier = threading.Barrier(size)
        self.mail: dict[tuple[int, int], queue.Queue[Vector]] = {
            (sender, receiver): queue.Queue() for sender in range(size) for receiver in range(size)
        }

    def comm(self, rank: int) -> "InProcessComm":
        """Return the Comm of `rank`."""
        return InProcessComm(self, rank)

    def received(self, sender: int, receiver: int) -> Vector:
        """Return the next packet. Raises TimeoutError after `wait_s`, or at once where a rank has failed."""
        deadline = time.monotonic() + self.wait_s
        while not self.barrier.broken and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                return self.mail[sender, receiver].get(timeout=0.1)
        raise TimeoutError(f"rank {receiver} waited for a packet of rank {sender}")


class InProcessComm(PackedComm):
    """The Comm and multicast transport of one thread."""

    eager_only = True  # the ranks' graphs would share TensorFlow's thread pool and could block each other

    def __init__(self, world: InProcessWorld, rank: int) -> None:
        self._world, self.rank, self.size = world, rank, world.size
        self._packed = Packed(self._reduce, rank, world.size)
        self.sent_bytes = 0  # by multicast

    def multicast(self, packet: Vector, root: int, members: tuple[int, ...]) -> Vector:
        if root != self.rank:
            return self._world.received(root, self.rank)
        self.sent_bytes += packet.nbytes
        for member in members:
            if member != root:
                self._world.mail[root, member].put(packet.copy())
        return packet

    def close(self) -> None:
        """Do nothing: multicasts hold no resources of their own."""

    def _reduce(self, vector: Vector, name: str) -> Vector:
        world = self._world
        world.names[self.rank], world.vectors[self.rank] = name, vector
        world.barrier.wait(world.wait_s)
        if len(set(world.names)) > 1:
            raise RuntimeError(f"all ranks must call the same collective. Received: {world.names}")
        exact = np.float32 if vector.dtype in HALVES else vector.dtype  # as MpiComm adds 16-bit floats
        with np.errstate(over="ignore"):
            total: Vector = np.sum(np.stack(world.vectors), axis=0, dtype=exact).astype(vector.dtype)
        world.barrier.wait(world.wait_s)
        return total


def on_ranks(size: int, work: Callable[[InProcessComm], Result], wait_s: float = WAIT_S) -> list[Result]:
    """Run `work(comm)` on each of `size` ranks at once; return the results by rank. Raises a rank's first error."""
    world, raised = InProcessWorld(size, wait_s), []
    results: dict[int, Result] = {}

    def rank(comm: InProcessComm) -> None:
        try:
            results[comm.rank] = work(comm)
        except Exception as error:
            raised.append(error)
            world.barrier.abort()

    threads = [threading.Thread(target=rank, args=(world.comm(r),)) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return [results[r] for r in range(size)]
