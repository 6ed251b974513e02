"""Instructions of the parameter server's scheduler (scheduler.py)."""

import queue
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nfdt.transport.channel import EpochOver, Release, WorkerGradient


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
class StepDone:
    """Lock step: a push was applied, and the next one waits for `step()` or `stop_epoch()`. Sent once per batch.

    `gradient` is the push; `fresh` marks its first batch.
    """

    worker: int
    step: int
    last: bool
    gradient: WorkerGradient
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

    def __init__(self, worker: int, push: int, batches: Sequence[int], epoch: int) -> None:
        super().__init__(worker, push, batches, epoch)
        self.worker, self.push, self.batches, self.epoch = worker, push, batches, epoch


Reply = Send | EpochOver | Release | None  # None: the session ends
Replies = queue.SimpleQueue[Reply]


class ReplyInbox(Protocol):
    """Receiver of a worker's replies: a queue, or an object that wakes a simulated worker."""

    def put(self, item: Reply) -> None:
        """Deliver a reply."""
        ...
