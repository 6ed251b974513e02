"""The parameter server: a scheduler that decides, an applier that computes, and a gRPC service around both.

Here are the decisions of shard 0: the instructions of its scheduler (scheduler.py), and the log that the other shards
replay.
"""

import itertools
import queue
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server.batch_dispatcher import RemainingBatches
from nfdt.transport import EpochOver, Release, WorkerGradient


@dataclass(frozen=True)
class Send:
    """Weights to compute on, and the batches of one push.

    Attributes:
        ahead: Other batches that are assigned to the worker.
        first: Whether this is the worker's first of the epoch.
        pull: Number of this pull among all workers' pulls.
        staleness: Staleness of the worker's last push.
        loads: ServedJob.loads when the weights were sent; the answer may be encoded after another load.
    """

    worker: int
    epoch: int
    batches: tuple[int, ...]
    sent: Any
    first: bool = False
    ahead: tuple[int, ...] = ()
    pull: int = 0
    staleness: int = 0
    loads: int = 0


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
    """The end of an epoch. `workers` take part in it; `remaining` is set where the epoch was suspended."""

    epoch: int
    steps: int
    samples: int
    staleness: Counter[int]
    workers: tuple[int, ...] = ()
    skipped: int = 0
    remaining: RemainingBatches | None = None


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


KEPT = 20_000  # entries; workers wait for the other shards, so a shard lags by few entries per worker

Reader = queue.SimpleQueue[pb.Logged | None]  # None: the end


class ReplicatedLog:
    """A log that is written once and read by every other shard, also by one that connects late or again."""

    def __init__(self) -> None:
        self._last: deque[pb.Logged] = deque(maxlen=KEPT)
        self._written = 0
        self._readers: list[Reader] = []

    def write(self, entry: pb.Logged) -> None:
        """Append an entry and send it to all readers."""
        self._last.append(entry)
        self._written += 1
        for reader in self._readers:
            reader.put(entry)

    def open(self, position: int) -> Reader:
        """Return a reader of all entries after the first `position`. Raises RuntimeError if some of them are gone."""
        gone = self._written - len(self._last)
        if position < gone:
            raise RuntimeError(f"the log holds entries from {gone} on. Received: a request for {position}")
        reader: Reader = queue.SimpleQueue()
        for entry in itertools.islice(self._last, position - gone, None):
            reader.put(entry)
        self._readers.append(reader)
        return reader

    def close(self, reader: Reader) -> None:
        """Remove a reader."""
        self._readers = [other for other in self._readers if other is not reader]

    def end(self) -> None:
        """End the log for all current readers."""
        for reader in self._readers:
            reader.put(None)
