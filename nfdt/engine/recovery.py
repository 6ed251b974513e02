"""Snapshots that the engine keeps in case a parameter server ends: the last one that all shards have sent.

A snapshot counts when the parts of all shards at its position have arrived; older parts are then dropped. No I/O.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from fdt.job import BatchHooks
from fdt.rpc.job_pb2 import JobSpec
from fdt.rpc.session_pb2 import Checkpoint, Setup
from fdt.rpc.tensor_pb2 import BlobRef
from nfdt.options import Options


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
        """Start a job.

        Restoration is off with batch callbacks, overlapped epochs, or batches that the client draws.
        """
        options, hooks = Options.read(job.options), job.fit.batch_hooks
        goes_back = int(hooks) == BatchHooks.NONE and not options.overlap_epochs and not job.data.HasField("feed")
        self.enabled = bool(options.checkpoint_s and self.shards and goes_back)
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
