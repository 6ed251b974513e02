"""K-sync SGD: a round ends with its first k gradients; later gradients of the same weights are dropped.

Chen et al., "Revisiting Distributed Synchronous SGD", 2016, arXiv:1604.00981, algorithms 3 and 4 (n - k are their
backup workers). The name is that of Dutta et al., "Slow and Stale Gradients Can Win the Race", AISTATS 2018,
arXiv:1803.01113. k = n is SSGD. `optimizer.iterations` and schedules count rounds. A dropped batch is not trained on in
that epoch.
"""

from dataclasses import dataclass, replace

from nfdt.algorithm import AsyncAlgorithm, Hyper, Push, State, Update
from nfdt.tree import Array, Tree, averaged

NOTE = "k_sync: a round is its first k batches, later ones are dropped; optimizer.iterations and schedules count rounds"


@dataclass(frozen=True)
class Round:
    """A round in progress; `mean` has the shapes of the trainable variables."""

    members: frozenset[int]
    number: int = 0
    arrived: frozenset[int] = frozenset()
    mean: list[Array] | None = None
    samples: Array | None = None


def rule(k: int = 0) -> AsyncAlgorithm:
    """Return K-sync SGD.

    Args:
        k: Number of gradients in a round, at most the number of workers; 0: one fewer than workers.

    Raises:
        ValueError: If `k` is negative.
    """
    if k < 0:
        raise ValueError(f"k_sync: k must be >= 0. Received: k={k}")

    def wanted(now: Round) -> int:
        return max(1, min(k or len(now.members) - 1, len(now.members)))

    def init(params: Tree, workers: int) -> tuple[Round, State]:
        return Round(frozenset(range(workers))), 0

    def pull(now: Round, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Round, State]:
        if hyper.worker in now.arrived:
            return None, now, mine
        return params, now, now.number

    def push(now: Round, pulled_in: State, params: Tree, push: Push) -> tuple[Update | None, Round, State]:
        if pulled_in != now.number:
            return None, now, pulled_in
        now = _add(now, push)
        if len(now.arrived) < wanted(now):
            return None, now, pulled_in
        return *flush(now, params), pulled_in

    def leave(now: Round, mine: State, worker: int) -> Round:
        return replace(now, members=now.members - {worker})

    def join(now: Round, worker: int) -> Round:
        return replace(now, members=now.members | {worker})

    def flush(now: Round, params: Tree) -> tuple[Update | None, Round]:
        return (Update(now.mean) if now.mean is not None else None), Round(now.members, now.number + 1)

    return AsyncAlgorithm(init, pull, push, leave, join, flush, waits=True, note=NOTE)


def _add(now: Round, push: Push) -> Round:
    """Add a gradient to the running mean by samples. One gradient alone stays bit-identical."""
    arrived = now.arrived | {push.worker}
    if now.mean is None or now.samples is None:
        return replace(now, arrived=arrived, mean=push.gradient, samples=push.samples)
    mean, samples = averaged(now.mean, now.samples, push.gradient, push.samples)
    return replace(now, arrived=arrived, mean=mean, samples=samples)
