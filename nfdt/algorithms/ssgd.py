"""SSGD: synchronous SGD. The mean of all workers' gradients of the same weights is one update.

The synchronous baseline of Dean et al., NIPS 2012, and Chen et al., "Revisiting Distributed Synchronous SGD", 2016,
arXiv:1604.00981, equation 3, without backup workers. The mean weights workers by samples, so that a partial last batch
counts correctly. A round is one batch of every worker. `optimizer.iterations` and schedules count rounds, that is
ceil(batches / workers) per epoch, not batches. The last round of an epoch takes the remaining batches.
"""

from dataclasses import dataclass

from nfdt.algorithm import AsyncAlgorithm, Hyper, Push, State, Update
from nfdt.tree import Array, Tree, averaged

NOTE = "ssgd: a round is one batch of every worker; optimizer.iterations and schedules count rounds"


@dataclass(frozen=True)
class Round:
    """A round in progress; `mean` has the shapes of the trainable variables."""

    members: frozenset[int]
    arrived: frozenset[int] = frozenset()
    mean: list[Array] | None = None
    samples: Array | None = None


def rule() -> AsyncAlgorithm:
    """Return SSGD. It has no parameters."""

    def init(params: Tree, workers: int) -> tuple[Round, State]:
        return Round(frozenset(range(workers))), None

    def pull(now: Round, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Round, State]:
        return (None if hyper.worker in now.arrived else params), now, mine

    def push(now: Round, mine: State, params: Tree, push: Push) -> tuple[Update | None, Round, State]:
        now = _add(now, push)
        if now.members - now.arrived:
            return None, now, mine
        return *flush(now, params), mine

    def leave(now: Round, mine: State, worker: int) -> Round:
        return Round(now.members - {worker}, now.arrived, now.mean, now.samples)

    def join(now: Round, worker: int) -> Round:
        return Round(now.members | {worker}, now.arrived, now.mean, now.samples)

    def flush(now: Round, params: Tree) -> tuple[Update | None, Round]:
        return (Update(now.mean) if now.mean is not None else None), Round(now.members)

    return AsyncAlgorithm(init, pull, push, leave, join, flush, waits=True, note=NOTE)


def _add(now: Round, push: Push) -> Round:
    """Add a gradient to the running mean by samples. With one worker the gradient stays bit-identical."""
    arrived = now.arrived | {push.worker}
    if now.mean is None or now.samples is None:
        return Round(now.members, arrived, push.gradient, push.samples)
    return Round(now.members, arrived, *averaged(now.mean, now.samples, push.gradient, push.samples))
