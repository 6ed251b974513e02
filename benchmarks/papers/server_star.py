"""Workers that add vectors through a parameter server, on a simulated clock: the cluster's last node is the server.

HFDT adds by a ring. The server of source D receives the vectors of all workers over its link, adds them one after
another, and sends the sum to each.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fdt.network import Cluster
from hfdt.collectives.simulated import SimulatedWorld, on_simulated


class StarComm:
    """A worker's connection to the server. `work` and `now_s` are those of its node."""

    def __init__(self, comm: Any) -> None:
        self._comm, self.rank, self.size = comm, comm.rank, comm.size - 1
        self.work = comm.work

    @property
    def now_s(self) -> float:
        """The simulated time in seconds."""
        return float(self._comm.now_s)

    def add(self, vector: Any) -> Any:
        """Add over the workers, through the server; one worker needs none."""
        if self.size == 1:
            return vector
        self._send(vector)
        return self._comm.multicast(vector, self.size, (self.rank, self.size))

    def end(self) -> None:
        """Tell the server that this worker sends nothing more."""
        self._send(np.empty(0))

    def _send(self, vector: Any) -> None:
        self._comm.multicast(vector, self.rank, (self.rank, self.size))


def on_star(cluster: Cluster, work: Callable[[StarComm], Any], bytes_a_step: float) -> float:
    """Run `work(comm)` on every node but the last, the server; return the simulated seconds of the slowest.

    Args:
        cluster: The workers and, last, the server.
        work: What a worker does; all call `add` equally often.
        bytes_a_step: The bytes that the server adds in the time of a training step.
    """
    world = SimulatedWorld(cluster)
    server = world.size - 1

    def node(comm: Any) -> float:
        if comm.rank < server:
            worker = StarComm(comm)
            work(worker)
            ended_s = worker.now_s
            worker.end()
            return ended_s
        serve(comm, server, bytes_a_step)
        return 0.0

    return max(on_simulated(world, node))


def serve(comm: Any, workers: int, bytes_a_step: float) -> None:
    """Add what the workers send, until they end."""
    while True:
        vectors = [comm.multicast(np.empty(0), k, (k, workers)) for k in range(workers)]
        if not len(vectors[0]):
            return
        for vector in vectors:
            comm.work(vector.nbytes / bytes_a_step)
        total = np.sum(np.stack(vectors), axis=0, dtype=vectors[0].dtype)
        for k in range(workers):
            comm.multicast(total, workers, (k, workers))
