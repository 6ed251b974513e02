"""Membership of workers: lost ones are replaced up to `--restarts` times, then the job continues down to `--min-np`.

Elastic workers joined by `nfdt join`. They count as members and are never replaced.
"""

from dataclasses import dataclass, field
from enum import Enum

LAST = 2**31  # an incarnation above all others


class LossVerdict(Enum):
    """Consequence of a worker's loss, in the words that the user reads."""

    REPLACED = "replaced"
    LEFT_OUT = "not replaced"
    TOO_FEW = "too few workers are left"


@dataclass
class WorkerMembership:
    """The workers that a job has.

    Attributes:
        workers: Number of workers at the start.
        restarts: Number of losses that are replaced.
        least: Smallest number of workers with which the job continues; 0: all.
        used: Number of replacements so far.
        incarnations: By rank, of all members, starting ones included.
    """

    workers: int
    restarts: int = 0
    least: int = 0
    used: int = 0
    incarnations: dict[int, int] = field(default_factory=dict)  # by rank
    _elastic: dict[int, int] = field(default_factory=dict)  # by rank: incarnation of its last elastic worker

    def __post_init__(self) -> None:
        self.least = self.least or self.workers
        self.incarnations = dict.fromkeys(range(self.workers), 0)

    def use_restart(self) -> bool:
        """Use one replacement. Return False if none is left."""
        left = self.used < self.restarts
        self.used += left
        return left

    def lose(self, rank: int, *, over: bool) -> LossVerdict:
        """Record a worker's loss. `over`: the job is ending and needs no replacement."""
        if not over and self.use_restart():
            self.incarnations[rank] += 1
            return LossVerdict.REPLACED
        del self.incarnations[rank]
        return LossVerdict.LEFT_OUT if over or len(self.incarnations) >= self.least else LossVerdict.TOO_FEW

    def join(self, rank: int) -> int:
        """Add an elastic worker. Return its incarnation."""
        self.incarnations[rank] = self._elastic[rank] = self._elastic.get(rank, -1) + 1
        return self.incarnations[rank]

    def leave(self, rank: int) -> bool:
        """Remove an elastic worker. Return False if no worker is left."""
        del self.incarnations[rank]
        return bool(self.incarnations)

    @property
    def gone(self) -> dict[int, int]:
        """By rank, the last incarnation of workers that are gone: none up to this one may connect again."""
        began = dict.fromkeys(range(self.workers), LAST)
        return {rank: last for rank, last in (began | self._elastic).items() if rank not in self.incarnations}

    def has(self, rank: int, incarnation: int) -> bool:
        """Return whether this incarnation of a worker is a member."""
        return self.incarnations.get(rank) == incarnation
