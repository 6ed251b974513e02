"""Ringleader ASGD: a table of every worker's gradients, and rounds in which each worker triggers exactly one update.

Maranjyan and Richtarik, "Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity under Data
Heterogeneity", ICLR 2026, arXiv:2509.22860. A round has two phases; G_i are the gradients of worker i in the table, b_i
is their number, of n workers:

    phase 1    a gradient of worker i enters G_i; until every worker has one
    phase 2    x <- x - gamma (1/n) sum_i G_i / b_i   when phase 1 ends, and at the next gradient of each other worker,
               which enters G_i before; a gradient of a worker that has had its update waits for the next round's table

A worker gets new weights only with the update that it triggers, so once in a round; otherwise it computes again at the
weights that it has. A table entry is then at most 2n - 2 updates old. No worker waits and nothing is dropped. Every
worker counts 1/n, so workers may have different data. A worker's own mean weights its gradients by samples.

`optimizer.iterations` and schedules count updates. Gradients that no update has used at an epoch's end are one more
update, and the next epoch begins with phase 1. The reported staleness counts from a worker's last pull.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, with_member
from nfdt.algorithms.malenia import mean_of_means
from nfdt.algorithms.ssgd import RoundMean
from nfdt.tree import Array, Tree

NOTE = "ringleader: each worker triggers one update in a round; optimizer.iterations and schedules count updates"
Means = Mapping[int, RoundMean]


@dataclass(frozen=True)
class GradientTable:
    """State of the algorithm.

    Attributes:
        members: The workers.
        epoch: Number of flushes so far.
        means: By worker: the mean G_i / b_i.
        later: By worker: the same for the next round.
        waiting: The workers whose update of this round is still to come; empty in phase 1.
    """

    members: frozenset[int]
    epoch: int = 0
    means: Means = field(default_factory=dict)
    later: Means = field(default_factory=dict)
    waiting: frozenset[int] = frozenset()

    def served(self, worker: int) -> "GradientTable":
        """Return the table after `worker` has triggered its update; the last one ends the round."""
        waiting = self.waiting - {worker}
        if waiting:
            return replace(self, waiting=waiting)
        return replace(self, means=self.later, later={}, waiting=waiting)


class Mine(NamedTuple):
    """State of one worker: the weights at which it computes until its update; None: it gets new ones."""

    epoch: int
    weights: list[Array] | None


def rule() -> AsyncAlgorithm:
    """Return Ringleader ASGD. It has no parameters."""
    return AsyncAlgorithm(_init, _pull, _push, _leave, with_member, _flush, holds=True, note=NOTE)


def _init(params: Tree, workers: int) -> tuple[GradientTable, Mine]:
    return GradientTable(frozenset(range(workers))), Mine(0, None)


def _pull(now: GradientTable, mine: Mine, params: Tree, hyper: Hyper) -> tuple[Tree | None, GradientTable, Mine]:
    keeps = mine.weights is not None and mine.epoch == now.epoch
    weights = mine.weights if keeps else params
    return weights, now, Mine(now.epoch, weights)


def _push(
    now: GradientTable, mine: Mine, params: Tree, push: Push
) -> tuple[AlgorithmUpdate | None, GradientTable, Mine]:
    worker, collects = push.worker, not now.waiting
    if not collects and worker not in now.waiting:
        return None, replace(now, later=_with(now.later, push)), mine
    now = replace(now, means=_with(now.means, push))
    if collects:
        if not now.members <= now.means.keys():
            return None, now, mine
        now = replace(now, waiting=now.members)
    return AlgorithmUpdate(mean_of_means(now.means)), now.served(worker), Mine(now.epoch, None)


def _leave(now: GradientTable, mine: Mine, worker: int) -> GradientTable:
    now = replace(now, members=now.members - {worker})
    return now.served(worker) if worker in now.waiting else now


def _flush(now: GradientTable, params: Tree) -> tuple[AlgorithmUpdate | None, GradientTable]:
    unused = now.later if now.waiting else now.means
    update = AlgorithmUpdate(mean_of_means(unused)) if unused else None
    return update, GradientTable(now.members, now.epoch + 1)


def _with(means: Means, push: Push) -> Means:
    """Return the means with that of the pushing worker, which becomes the last: arrivals in turn share one program."""
    others = {worker: mean for worker, mean in means.items() if worker != push.worker}
    return {**others, push.worker: means.get(push.worker, RoundMean()).averaged(RoundMean.of(push))}
