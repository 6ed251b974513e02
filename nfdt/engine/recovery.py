"""Recovery from lost processes: the members that a job has, and the snapshots of its parameter servers. No I/O.

Lost workers are replaced up to `--restarts` times, then the job continues down to `--min-np`. Elastic workers joined by
`nfdt join`. They count as members and are never replaced. A snapshot counts when the parts of all shards at its
position have arrived; older parts are then dropped.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from fdt.job import BatchHooks, is_on
from fdt.rpc.job_pb2 import JobSpec
from fdt.rpc.session_pb2 import Checkpoint, Setup
from fdt.rpc.tensor_pb2 import BlobRef
from nfdt.options import Options

LAST = 2**31  # an incarnation above all others


def is_resumable(job: JobSpec) -> bool:
    """Return whether an epoch of the job can continue from a state within it.

    It cannot with batch callbacks, overlapped epochs, or batches that the client draws.
    """
    drawn, hooks = job.data.HasField("feed"), int(job.fit.batch_hooks)
    return hooks == BatchHooks.NONE and not drawn and not Options.read(job.options).overlap_epochs


def is_suspendable(job: JobSpec) -> bool:
    """Return whether an epoch of the job can be suspended, which the client asks for where it saves the run."""
    return is_on(job.options, "suspendable") and is_resumable(job)


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


@dataclass
class ServerRecovery:
    """Snapshots of one job. `shards` is 0 if the server has no process of its own."""

    shards: int
    enabled: bool = False
    generation: int = 0
    first_epoch: int = 0
    whole: dict[int, Checkpoint] = field(default_factory=dict)  # by shard; empty: the start of the job
    parts: dict[int, dict[int, Checkpoint]] = field(default_factory=dict)  # by number and shard
    restoring: set[int] = field(default_factory=set)  # shards that have not restarted yet

    def begin(self, job: JobSpec) -> None:
        """Start a job. Restoration is off where an epoch cannot continue from a state within it."""
        self.enabled = bool(Options.read(job.options).checkpoint_s and self.shards and is_resumable(job))
        self.first_epoch = job.fit.initial_epoch

    def keep(self, shard: int, part: Checkpoint) -> list[BlobRef]:
        """Record a shard's part. Return the blobs to drop."""
        parts = self.parts.setdefault(part.number, {})
        parts[shard] = part
        if len(parts) < self.shards:
            return []
        before, self.whole = [*self.whole.values()], self.parts.pop(part.number)
        older = [self.parts.pop(number) for number in sorted(self.parts) if number < part.number]
        return [p.state for p in before] + [p.state for group in older for p in group.values()]

    def reaches(self, epoch: int) -> bool:
        """Return whether the last snapshot allows training to the end of `epoch` (-1: no epoch was requested)."""
        if not self.enabled:
            return False
        if not self.whole:
            return epoch in (-1, self.first_epoch)
        return self.whole[0].epoch + (not self.whole[0].running) >= epoch

    def holds(self, epoch: int) -> bool:
        """Return whether restored servers have started this epoch already."""
        return bool(self.whole) and self.whole[0].epoch >= epoch

    def restore(self, job: JobSpec) -> tuple[list[Setup], list[BlobRef]]:
        """Start a restoration. Return each shard's setup, and the blobs to drop."""
        self.generation += 1
        self.restoring = set(range(self.shards))
        spent = list(self._unfinished())
        self.parts.clear()
        setups = [Setup(job=job, generation=self.generation) for _ in range(self.shards)]
        for shard, part in self.whole.items():
            setups[shard].snapshot.CopyFrom(part.state)
        return setups, spent

    def end(self) -> list[BlobRef]:
        """End the job. Return the blobs to drop."""
        return [*self._unfinished(), *(part.state for part in self.whole.values())]

    def _unfinished(self) -> Iterator[BlobRef]:
        return (part.state for parts in self.parts.values() for part in parts.values())
