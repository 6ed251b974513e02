"""Malenia SGD: an update is the mean of the workers' own means of their gradients of the same weights; no worker waits.

Tyurin and Richtarik, "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed Computation
Model", NeurIPS 2023, arXiv:2305.12387, Malenia SGD. With B_i gradients of the current x from worker i, of n workers:

    collect until  n / sum_i (1 / B_i) >= S / n,  which needs one gradient of every worker;  drop one of another x
    x <- x - gamma (1/n) sum_i (1/B_i) sum_j g_ij

A worker counts 1/n however many gradients it gives, so workers may have different data. A worker's own mean weights its
gradients by samples. `optimizer.iterations` and schedules count updates. A dropped batch is not trained on in that
epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State, require, with_member, without_member
from nfdt.algorithms.ssgd import RoundMean
from nfdt.tree import Array, Tree, averaged

NOTE = "malenia: an update has gradients of every worker, stale ones are dropped; optimizer.iterations counts updates"


@dataclass(frozen=True)
class Collected:
    """State of the algorithm: the number of the update under way, and the mean of each worker's gradients for it."""

    members: frozenset[int]
    number: int = 0
    means: Mapping[int, RoundMean] = field(default_factory=dict)


def rule(s: int = 0) -> AsyncAlgorithm:
    """Return Malenia SGD.

    Args:
        s: S, n times the harmonic mean of the workers' counts that ends the collection; 0: n, one gradient of each.

    Raises:
        ValueError: If `s` is negative.
    """
    require(s >= 0, "malenia", "s must be >= 0", s=s)

    def init(params: Tree, workers: int) -> tuple[Collected, State]:
        return Collected(frozenset(range(workers))), 0

    def pull(now: Collected, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Collected, State]:
        return params, now, now.number

    def push(
        now: Collected, pulled_in: State, params: Tree, push: Push
    ) -> tuple[AlgorithmUpdate | None, Collected, State]:
        if pulled_in != now.number:
            return None, now, pulled_in
        mean = now.means.get(push.worker, RoundMean()).averaged(RoundMean.of(push))
        now = replace(now, means={**now.means, push.worker: mean})
        return (*flush(now, params), pulled_in) if complete(now) else (None, now, pulled_in)

    def complete(now: Collected) -> bool:
        workers = len(now.members)
        if not now.members <= now.means.keys():
            return False
        return workers / sum(1 / now.means[worker].count for worker in now.members) >= (s or workers) / workers

    def flush(now: Collected, params: Tree) -> tuple[AlgorithmUpdate | None, Collected]:
        update = AlgorithmUpdate(mean_of_means(now.means)) if now.means else None
        return update, Collected(now.members, now.number + 1)

    return AsyncAlgorithm(init, pull, push, without_member, with_member, flush, holds=True, note=NOTE)


def mean_of_means(means: Mapping[int, RoundMean]) -> list[Array]:
    """Return the mean of the workers' means, each counted once, in the shapes of the variables.

    Args:
        means: By worker: the mean of its gradients; at least one.
    """
    mean: list[Array] = []
    for number, each in enumerate(means.values()):
        assert each.mean is not None
        mean = averaged(mean, float(number), each.mean, 1.0)[0] if mean else each.mean
    return mean
