"""Events and instructions of the parameter server's scheduler (scheduler.py)."""

import queue
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol

from nfdt.server.algorithm_state import Gradient


@dataclass(frozen=True)
class Send:
    """Weights to compute on, and the batches of one push.

    Attributes:
        ahead: Other batches that are assigned to the worker.
        first: Whether this is the worker's first of the epoch.
        pull: Number of this pull among all workers' pulls.
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
    """To a worker: the epoch has no more batches. The worker reports, then asks again."""

    worker: int
    epoch: int


@dataclass(frozen=True)
class Release:
    """To a worker: the job has ended."""

    worker: int


@dataclass(frozen=True)
class StepDone:
    """Lock step: a push was applied, and the next one waits for `step()` or `stop_epoch()`. Sent once per batch.

    `fresh` marks the first batch of its push.
    """

    worker: int
    step: int
    last: bool
    note: Any
    fresh: bool = True


@dataclass(frozen=True)
class EpochDone:
    """The end of an epoch. `workers` are those that take part in the epoch's end."""

    epoch: int
    steps: int
    samples: int
    staleness: Counter[int]
    workers: tuple[int, ...] = ()
    skipped: int = 0


Instruction = Send | EpochOver | Release | StepDone | EpochDone


class NotFinite(Exception):
    """A push contains NaN or infinity. `push` is the worker's own count."""

    def __init__(self, pushed: "WorkerPush", epoch: int) -> None:
        super().__init__(pushed.worker, pushed.push, pushed.batches, epoch)
        self.worker, self.push, self.batches, self.epoch = pushed.worker, pushed.push, pushed.batches, epoch


@dataclass(frozen=True)
class WorkerPush:
    """A push when it arrives. `push` rises per worker; a retry repeats it. `note` is returned in StepDone."""

    worker: int
    push: int
    batches: tuple[int, ...]
    gradient: Gradient
    note: Any = None


Reply = Send | EpochOver | Release | None  # None: the session ends
Replies = queue.SimpleQueue[Reply]


class ReplyInbox(Protocol):
    """Receiver of a worker's replies: a queue, or an object that wakes a simulated worker."""

    def put(self, item: Reply) -> None:
        """Deliver a reply."""
        ...
