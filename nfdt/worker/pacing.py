"""Pacing of an emulated worker: its step takes the time of the node that it emulates."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fdt.network import Pace
from fdt.network.reading import read_cluster

CLUSTER_VARIABLE = "FDT_EMULATED_CLUSTER"  # path of the cluster file, if workers are emulated


class Pacer:
    """Makes each step of a worker last at least as long as on its node of the cluster."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._begin = pace, time.monotonic()

    def hold(self, started: float, steps: float = 1.0) -> None:
        """Wait until `steps` steps that started at `started` (time.monotonic) would end on the node."""
        wanted = self._pace.seconds(started - self._begin, steps)
        time.sleep(max(0.0, started + wanted - time.monotonic()))


def pacer_of(rank: int, seed: int, *, every_node: bool = False) -> Pacer | None:
    """Return the pacer of worker `rank`, or with `every_node` of node `rank`. None without an emulated cluster."""
    file = os.environ.get(CLUSTER_VARIABLE)
    if file is None:
        return None
    cluster = read_cluster(Path(file)).with_workers(None)
    nodes = cluster.nodes if every_node else cluster.workers
    return Pacer(Pace(nodes[rank], cluster.step_s, (seed,)))


class PacedStep:
    """A GradientStep (nfdt/worker/step.py) or LocalSteps that takes the node's time."""

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
    """Return `step`, paced if worker `rank` emulates a node."""
    pacer = pacer_of(rank, seed)
    return step if pacer is None else PacedStep(step, pacer)
