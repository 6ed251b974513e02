"""The seconds and bytes of HFDT's algorithms on a described cluster (docs/cluster.md), without a model.

Ranks run the algorithm itself on one number, and exchange as many bytes as the model would. So the exchanges of an
algorithm, and the order of computing and sending, are those of its file. Nothing is sent while a rank computes.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fdt.errors import UsageError
from fdt.network import Cluster, NetworkLink
from hfdt import algorithms
from hfdt.algorithm import BlockAlgorithm, BlockPlan, RoundAlgorithm
from hfdt.collectives.simulated import SimulatedComm, SimulatedWorld, on_simulated

NUMBERS = 2_520  # tensors are cut to so many float32, and links slowed alike: times stay. 1 to 10 divide it
MOST_REDUNDANCY = 4
TRIED_STEPS = 3  # of each redundancy


@dataclass(frozen=True)
class Load:
    """What a cluster is to do.

    Attributes:
        batches: Batches of the script in an epoch.
        epochs: Passes over the data.
        nbytes: Bytes of the gradients, which are those of the weights.
        slot_nbytes: Bytes of the optimizer's slots.
        per_worker: Each rank takes whole batches (`hfdt run --batch per-worker`).
        seed: Determines the times of steps.
        fixed: The part of a step's time that does not shrink with the rows of a batch, in 0..1. A block has it, too.
    """

    batches: int
    epochs: int
    nbytes: int
    slot_nbytes: int = 0
    per_worker: bool = False
    seed: int = 0
    fixed: float = 0.0

    def steps(self, rows: float) -> float:
        """Return the time of a step on a part of a batch, over that of a whole one."""
        return self.fixed + (1 - self.fixed) * rows


@dataclass(frozen=True)
class Exchanged:
    """A moment after an exchange: batches of the script that are done, simulated seconds, bytes sent by all ranks."""

    batches: int
    seconds: float
    nbytes: float


def exchanges(cluster: Cluster, algorithm: str, load: Load) -> list[Exchanged]:
    """Return the moments after each round, or step, of HFDT's `algorithm`.

    Raises:
        UsageError: There is no such algorithm, or not for so many ranks.
    """
    made = algorithms.make(algorithm)
    if isinstance(made, RoundAlgorithm):
        return _simulated(cluster, load, lambda comm: _Rounds(made, comm, load).run())
    if isinstance(made, BlockAlgorithm):
        return _blocks(cluster, made, load)
    return _steps(cluster, load)


def round_is_epoch(algorithm: str) -> bool:
    """Return whether the ranks of HFDT's `algorithm` exchange once an epoch."""
    made = algorithms.make(algorithm)
    return isinstance(made, RoundAlgorithm) and not made.batches


def slowed(cluster: Cluster, factor: float) -> Cluster:
    """Return `cluster` with all bandwidths divided by `factor`."""

    def link(given: NetworkLink | None) -> NetworkLink | None:
        return None if given is None else replace(given, bandwidth=given.bandwidth / factor)

    groups = tuple(replace(g, link=link(g.link), uplink=link(g.uplink)) for g in cluster.groups)
    links = tuple(replace(each, link=link(each.link)) for each in cluster.links)
    own = replace(cluster.link, bandwidth=cluster.link.bandwidth / factor)
    server, medium = link(cluster.server), link(cluster.medium)
    return replace(cluster, groups=groups, link=own, server=server, medium=medium, links=links)


def _simulated(cluster: Cluster, load: Load, rank: Any) -> list[Exchanged]:
    """Run `rank(comm)` on every rank; return the latest of their moments, with the bytes of all."""
    factor = max(load.nbytes, 1) / (4 * NUMBERS)
    found = on_simulated(SimulatedWorld(slowed(cluster, factor), load.seed), rank)
    return [
        Exchanged(each[0].batches, max(e.seconds for e in each), factor * sum(e.nbytes for e in each))
        for each in zip(*found, strict=True)
    ]


def _steps(cluster: Cluster, load: Load) -> list[Exchanged]:
    n, vector = len(cluster.workers), np.zeros(NUMBERS, np.float32)
    taken = n if load.per_worker else 1

    def rank(comm: SimulatedComm) -> list[Exchanged]:
        found, sent = [], 0.0
        for epoch in range(load.epochs):
            for first in range(0, load.batches, taken):
                comm.work(load.steps(taken / n))
                comm.sum_vector(vector, "gradients")
                sent += 2 * (n - 1) / n * vector.nbytes
                done = epoch * load.batches + min(first + taken, load.batches)
                found.append(Exchanged(done, comm.now_s, sent))
        return found

    return _simulated(cluster, load, rank)


def _blocks(cluster: Cluster, rule: BlockAlgorithm, load: Load) -> list[Exchanged]:
    """Return the moments of the redundancy that is fastest in a few steps."""
    n = len(cluster.workers)
    if n == 1:
        return _steps(cluster, load)
    plans = dict(_plans(rule, n))
    if not plans:
        raise UsageError(f"coded has no such redundancy for {n} ranks. Received: {rule.redundancy}")
    best = next(iter(plans.values()))
    if len(plans) > 1:
        short = replace(load, batches=TRIED_STEPS, epochs=1)
        best = min(plans.values(), key=lambda plan: _coded(cluster, plan, short)[-1].seconds)
    return _coded(cluster, best, load)


def _plans(rule: BlockAlgorithm, n: int) -> Iterator[tuple[int, BlockPlan]]:
    """Yield the plans of the redundancies that there are for `n` ranks."""
    for r in range(1, min(n - 1, MOST_REDUNDANCY) + 1) if rule.redundancy is None else [rule.redundancy]:
        with contextlib.suppress(ValueError):
            yield r, rule.plan(n, r)


def _coded(cluster: Cluster, plan: BlockPlan, load: Load) -> list[Exchanged]:
    vector = np.zeros(NUMBERS, np.float32)

    def rank(comm: SimulatedComm) -> list[Exchanged]:
        own = {block: vector for block, owners in enumerate(plan.owners) if comm.rank in owners}
        found = []
        for done in range(1, load.batches * load.epochs + 1):
            comm.work(len(own) * load.steps(1 / len(plan.owners)), draws=len(own))
            plan.total(own, comm)
            found.append(Exchanged(done, comm.now_s, float(comm.sent_bytes)))
        return found

    return _simulated(cluster, load, rank)


class _Rounds:
    """One rank of an algorithm with rounds: its ReduceGroup, and its LocalObjective."""

    def __init__(self, rule: RoundAlgorithm, comm: SimulatedComm, load: Load) -> None:
        self._rule, self._comm, self._load = rule, comm, load
        self.rank, self.size, self._sent, self._batches = comm.rank, comm.size, 0.0, 0
        self._step = 1.0 if load.per_worker else load.steps(1 / comm.size)
        self._slots = round(NUMBERS * load.slot_nbytes / max(load.nbytes, 1))

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Exchange as many bytes as the model has for each call. The numbers do not matter."""
        self._exchange(NUMBERS)
        return list(tensors)

    def gradient(self) -> list[Any]:
        """Compute for a pass over this rank's part of the round."""
        self._work(self._batches)
        return [np.zeros(1)]

    def curvature(self, direction: Any) -> list[Any]:
        """Compute for one more pass."""
        return self.gradient()

    def _work(self, batches: float) -> None:
        self._comm.work(batches * self._step, batches)

    def _exchange(self, numbers: int) -> None:
        vector = np.zeros(numbers, np.float32)
        self._comm.sum_vector(vector, "round")
        self._sent += 2 * (self.size - 1) / self.size * vector.nbytes

    def run(self) -> list[Exchanged]:
        """Run all rounds."""
        load, found = self._load, list[Exchanged]()
        scale = self.size if load.per_worker else 1
        local = math.ceil(load.batches / scale)  # batches of this rank in an epoch
        state, size = self._rule.init([np.zeros(1)]), self._rule.batches or local
        for epoch in range(load.epochs):
            for first in range(0, local, size):
                self._batches = min(size, local - first)
                state = self._round(state)
                done = epoch * load.batches + min((first + self._batches) * scale, load.batches)
                found.append(Exchanged(done, self._comm.now_s, self._sent))
        return found

    def _round(self, state: Any) -> Any:
        w = [np.zeros(1)]
        if self._rule.begin is not None:
            _, state = self._rule.begin(state, w, self, self)
        self._work(self._rule.passes * self._batches)
        _, state = self._rule.end(state, w, w, self)
        if self._rule.slots and self._slots:
            self._exchange(self._slots)
        return state
