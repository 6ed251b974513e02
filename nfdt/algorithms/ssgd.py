"""SSGD: synchronous SGD. The mean of all workers' gradients of the same weights is one update.

The synchronous baseline of Dean et al., NIPS 2012, and Chen et al., "Revisiting Distributed Synchronous SGD", 2016,
arXiv:1604.00981, equation 3, without backup workers. Worker m gives the mean gradient g_m of its n_m of the round's n
samples:

    w <- w - eta sum_m (n_m / n) g_m(w)            when the gradients of all workers have arrived

So a partial last batch counts correctly. A round is one batch of every worker. `optimizer.iterations` and schedules
count rounds, that is ceil(batches / workers) per epoch, not batches. The last round of an epoch takes the remaining
batches.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State, with_member, without_member
from nfdt.tree import Array, Tree, averaged

Mean = TypeVar("Mean", bound="RoundMean")
NOTE = "ssgd: a round is one batch of every worker; optimizer.iterations and schedules count rounds"


@dataclass(frozen=True)
class RoundMean:
    """Pushes of one round: their workers, and their mean by samples in the shapes of the trainable variables."""

    arrived: frozenset[int] = frozenset()
    count: int = 0
    mean: list[Array] | None = None  # None: no push
    samples: Array = 0.0

    @classmethod
    def of(cls: type[Mean], push: Push, **more: Any) -> Mean:
        """Return the mean of one push."""
        return cls(frozenset({push.worker}), 1, push.gradient, push.samples, **more)

    def averaged(self: Mean, other: "RoundMean") -> Mean:
        """Return the mean of both. That of one push alone stays bit-identical."""
        arrived, count = self.arrived | other.arrived, self.count + other.count
        if self.mean is None or other.mean is None:
            only = other if self.mean is None else self
            return replace(self, arrived=arrived, count=count, mean=only.mean, samples=only.samples)
        mean, samples = averaged(self.mean, self.samples, other.mean, other.samples)
        return replace(self, arrived=arrived, count=count, mean=mean, samples=samples)


@dataclass(frozen=True)
class Round:
    """State of the algorithm: the round in progress and its number."""

    members: frozenset[int]
    number: int = 0
    pushed: RoundMean = RoundMean()


def rounds(complete: Callable[[Round], bool], note: str, *, waits: bool = True) -> AsyncAlgorithm:
    """Return the algorithm of rounds: their mean is one update, and a gradient of an earlier round is dropped.

    Args:
        complete: Returns whether a round ends with the pushes that it has.
        note: The algorithm's note.
        waits: Whether a worker waits for the end of a round after its push; otherwise it computes another gradient.
    """

    def init(params: Tree, workers: int) -> tuple[Round, State]:
        return Round(frozenset(range(workers))), 0

    def pull(now: Round, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Round, State]:
        return (None, now, mine) if waits and hyper.worker in now.pushed.arrived else (params, now, now.number)

    def push(now: Round, pulled_in: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Round, State]:
        if pulled_in != now.number:
            return None, now, pulled_in
        now = replace(now, pushed=now.pushed.averaged(RoundMean.of(push)))
        return (*flush(now, params), pulled_in) if complete(now) else (None, now, pulled_in)

    def flush(now: Round, params: Tree) -> tuple[AlgorithmUpdate | None, Round]:
        mean = now.pushed.mean
        return (None if mean is None else AlgorithmUpdate(mean)), Round(now.members, now.number + 1)

    return AsyncAlgorithm(init, pull, push, without_member, with_member, flush, waits=waits, holds=True, note=note)


def rule() -> AsyncAlgorithm:
    """Return SSGD. It has no parameters."""
    return rounds(lambda now: now.members <= now.pushed.arrived, NOTE)
