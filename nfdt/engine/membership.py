"""Which workers a job has: lost ones are replaced up to `--restarts` times, then done without down to `--min-np`.

Guests joined by themselves (`nfdt join`). They count among those that are there; nobody replaces them.
"""

from dataclasses import dataclass, field
from enum import Enum

LAST = 2**31  # an incarnation behind all


class LossVerdict(Enum):
    """What follows from a worker's loss, in the words that the user reads."""

    REPLACED = "replaced"
    LEFT_OUT = "not replaced"
    TOO_FEW = "too few are left"


@dataclass
class WorkerMembership:
    """`workers`: how many begin.  `restarts`: how many losses are made good.  `least`: how few may go on, 0 for all."""

    workers: int
    restarts: int = 0
    least: int = 0
    used: int = 0
    incarnations: dict[int, int] = field(default_factory=dict)  # by rank, of all that are there or about to be
    _elastic: dict[int, int] = field(default_factory=dict)  # by rank: the incarnation of its last guest

    def __post_init__(self) -> None:
        self.least = self.least or self.workers
        self.incarnations = dict.fromkeys(range(self.workers), 0)

    def use_restart(self) -> bool:
        """Use up one replacement, if there is one left."""
        left = self.used < self.restarts
        self.used += left
        return left

    def lose(self, rank: int, *, over: bool) -> LossVerdict:
        """`over`: the job is, and needs no replacement."""
        if not over and self.use_restart():
            self.incarnations[rank] += 1
            return LossVerdict.REPLACED
        del self.incarnations[rank]
        return LossVerdict.LEFT_OUT if over or len(self.incarnations) >= self.least else LossVerdict.TOO_FEW

    def join(self, rank: int) -> int:
        """A guest comes; its incarnation."""
        self.incarnations[rank] = self._elastic[rank] = self._elastic.get(rank, -1) + 1
        return self.incarnations[rank]

    def leave(self, rank: int) -> bool:
        """A guest is gone. False when nobody is left."""
        del self.incarnations[rank]
        return bool(self.incarnations)

    @property
    def gone(self) -> dict[int, int]:
        """By rank, those that are not there any more: no incarnation up to this one may come again."""
        began = dict.fromkeys(range(self.workers), LAST)
        return {rank: last for rank, last in (began | self._elastic).items() if rank not in self.incarnations}

    def has(self, rank: int, incarnation: int) -> bool:
        """Whether that very process is there, as far as anybody knows."""
        return self.incarnations.get(rank) == incarnation
