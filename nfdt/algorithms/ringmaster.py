"""Ringmaster ASGD: asynchronous SGD that drops a gradient whose staleness is R or more.

Maranjyan, Tyurin and Richtarik, "Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity", ICML 2025,
arXiv:2501.16168, the method without stops of computations:

    for a gradient g of x_(k - delta):  x_(k+1) = x_k - gamma g  if delta < R,  else drop it
    the worker computes the next gradient at the current x

R = 1 takes gradients of the current weights only, a large R is ASGD. The paper's R is max(1, sigma^2 / epsilon), of
the gradients' variance and the wanted accuracy; it is not measured here. `optimizer.iterations` and schedules count
updates. A dropped batch is not trained on in that epoch.
"""

from dataclasses import dataclass, replace

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State, require
from nfdt.tree import Tree

NOTE = "ringmaster: gradients of a staleness of {} or more are dropped; optimizer.iterations counts updates"


@dataclass(frozen=True)
class Updates:
    """State of the algorithm: the number of updates so far, and of workers."""

    workers: int
    number: int = 0


def rule(r: int = 0) -> AsyncAlgorithm:
    """Return Ringmaster ASGD.

    Args:
        r: R, the smallest staleness at which a gradient is dropped; 0: the number of workers.

    Raises:
        ValueError: If `r` is negative.
    """
    require(r >= 0, "ringmaster", "r must be >= 0", r=r)

    def init(params: Tree, workers: int) -> tuple[Updates, State]:
        return Updates(workers), 0

    def pull(now: Updates, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Updates, State]:
        return params, now, now.number

    def push(now: Updates, pulled_at: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Updates, State]:
        if now.number - pulled_at >= (r or max(1, now.workers)):
            return None, now, pulled_at
        return AlgorithmUpdate(push.gradient), replace(now, number=now.number + 1), pulled_at

    def leave(now: Updates, mine: State, worker: int) -> Updates:
        return replace(now, workers=now.workers - 1)

    def join(now: Updates, worker: int) -> Updates:
        return replace(now, workers=now.workers + 1)

    note = NOTE.format(r or "as many updates as workers")
    return AsyncAlgorithm(init, pull, push, leave, join, holds=True, note=note)
