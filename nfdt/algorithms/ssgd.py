"""SSGD: a full barrier. Every worker's gradient of the same weights, averaged by samples, is one update.

The synchronous baseline of Dean et al., NIPS 2012, and Chen et al., "Revisiting Distributed Synchronous SGD", 2016,
arXiv:1604.00981, equation 3, without backup workers; averaged by samples, so that a last partial batch counts as it
should. A round is one batch of every worker: `optimizer.iterations` and schedules count rounds, that is
ceil(batches / workers) an epoch, not batches. The epoch's last round takes what is left.
"""

from dataclasses import dataclass

from nfdt.algorithm import AsyncAlgorithm, Hyper, Push, State, Update
from nfdt.tree import Array, Tree, averaged

NOTE = "ssgd: a round is one batch of every worker; optimizer.iterations and schedules count rounds"


@dataclass(frozen=True)
class Round:
    members: frozenset[int]
    arrived: frozenset[int] = frozenset()
    mean: list[Array] | None = None
    samples: Array | None = None


def rule() -> AsyncAlgorithm:
    """No parameters."""

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
    """The running mean: with one worker the gradient itself, to the bit."""
    arrived = now.arrived | {push.worker}
    if now.mean is None or now.samples is None:
        return Round(now.members, arrived, push.gradient, push.samples)
    return Round(now.members, arrived, *averaged(now.mean, now.samples, push.gradient, push.samples))
