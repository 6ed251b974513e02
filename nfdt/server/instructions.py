"""What goes into the parameter server's policy, and the instructions that come out (scheduler.py)."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from nfdt.server.algorithm_state import Gradient


@dataclass(frozen=True)
class Send:
    """Weights to compute on, and the batches of one push. `ahead`: other batches in hand.

    first: of the epoch, so send what rarely changes too.  pull: its number among all workers' pulls.
    """

    worker: int
    epoch: int
    batches: tuple[int, ...]
    sent: Any
    first: bool = False
    ahead: tuple[int, ...] = ()
    pull: int = 0


@dataclass(frozen=True)
class EpochOver:
    """To a worker: no more batches in this epoch; report, then ask again."""

    worker: int
    epoch: int


@dataclass(frozen=True)
class Release:
    """To a worker: the job is over."""

    worker: int


@dataclass(frozen=True)
class StepDone:
    """Lock step: a push was taken; the next waits for `step()` or `stop_epoch()`. Told once for each of its batches.

    fresh: the first of its push.
    """

    worker: int
    step: int
    last: bool
    note: Any
    fresh: bool = True


@dataclass(frozen=True)
class EpochDone:
    """`workers`: those who take part, and are told or will be."""

    epoch: int
    steps: int
    samples: int
    staleness: Counter[int]
    workers: tuple[int, ...] = ()
    skipped: int = 0


Instruction = Send | EpochOver | Release | StepDone | EpochDone


class NotFinite(Exception):
    """A push holds NaN or infinity. `push`: the worker's own count."""

    def __init__(self, pushed: "WorkerPush", epoch: int) -> None:
        super().__init__(pushed.worker, pushed.push, pushed.batches, epoch)
        self.worker, self.push, self.batches, self.epoch = pushed.worker, pushed.push, pushed.batches, epoch


@dataclass(frozen=True)
class WorkerPush:
    """A push as it arrives. `push` rises by worker; a retry repeats it. `note` goes back out in StepDone."""

    worker: int
    push: int
    batches: tuple[int, ...]
    gradient: Gradient
    note: Any = None
