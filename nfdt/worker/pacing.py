"""An emulated worker's step takes the time of the node it imitates."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fdt.network.pace import Pace
from fdt.network.reading import read_cluster

CLUSTER_VARIABLE = "NFDT_EMULATED_CLUSTER"  # path of the description, where workers are emulated


class Pacer:
    """One worker's. Where this machine is slower than the node, its step is as slow as that."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._begin = pace, time.monotonic()

    def hold(self, started: float, steps: float = 1.0) -> None:
        """Return when `steps` steps begun at `started` (time.monotonic) would have ended on the node."""
        wanted = self._pace.seconds(started - self._begin, steps)
        time.sleep(max(0.0, started + wanted - time.monotonic()))


def pacer_of(rank: int, seed: int, *, every_node: bool = False) -> Pacer | None:
    """Worker `rank`'s (or with `every_node` node `rank`'s), where the environment names a cluster to imitate."""
    file = os.environ.get(CLUSTER_VARIABLE)
    if file is None:
        return None
    cluster = read_cluster(Path(file)).with_workers(None)
    nodes = cluster.nodes if every_node else cluster.workers
    return Pacer(Pace(nodes[rank], cluster.step_s, (seed,)))


class PacedStep:
    """A Step (nfdt/worker/step.py) or LocalSteps that take the node's time."""

    def __init__(self, step: Any, pacer: Pacer) -> None:
        self._step, self._pacer = step, pacer

    def run(self, lane: int, batches: Sequence[Any], *arguments: Any) -> Any:
        started = time.monotonic()
        result = self._step.run(lane, batches, *arguments)
        self._pacer.hold(started, len(batches))
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


def paced(step: Any, rank: int, seed: int) -> Any:
    """`step` itself, unless worker `rank` imitates a node."""
    pacer = pacer_of(rank, seed)
    return step if pacer is None else PacedStep(step, pacer)
