"""What the engine keeps for the day a parameter server dies: the last snapshot that all shards have given.

A shard's part counts once the parts of all shards at that position are here: then the parts before it go. No I/O.
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
    """`shards`: of the servers; 0 where they are not processes of their own."""

    shards: int
    enabled: bool = False
    generation: int = 0
    first_epoch: int = 0
    whole: dict[int, Checkpoint] = field(default_factory=dict)  # by shard; empty: the job's own beginning
    parts: dict[int, dict[int, Checkpoint]] = field(default_factory=dict)  # by number and shard
    restoring: set[int] = field(default_factory=set)  # shards that have yet to begin anew

    def begin(self, job: JobSpec) -> None:
        """Where callbacks act in the midst of epochs, or the client draws the batches, going back is not possible."""
        options, hooks = Options.read(job.options), job.fit.batch_hooks
        goes_back = int(hooks) == BatchHooks.NONE and not options.overlap_epochs and not job.data.HasField("feed")
        self.enabled = bool(options.checkpoint_s and self.shards and goes_back)
        self.first_epoch = job.fit.initial_epoch

    def keep(self, shard: int, part: Checkpoint) -> list[BlobRef]:
        """Note a part; what it makes superfluous is to be dropped."""
        parts = self.parts.setdefault(part.number, {})
        parts[shard] = part
        if len(parts) < self.shards:
            return []
        before, self.whole = [*self.whole.values()], self.parts.pop(part.number)
        older = [self.parts.pop(number) for number in sorted(self.parts) if number < part.number]
        return [p.state for p in before] + [p.state for group in older for p in group.values()]

    def reaches(self, epoch: int) -> bool:
        """Whether training can go on to the end of `epoch` (-1: none was asked for) from what is here."""
        if not self.enabled:
            return False
        if not self.whole:
            return epoch in (-1, self.first_epoch)
        return self.whole[0].epoch + (not self.whole[0].running) >= epoch

    def holds(self, epoch: int) -> bool:
        """Whether the servers, once restored, have begun this epoch already."""
        return bool(self.whole) and self.whole[0].epoch >= epoch

    def restore(self, job: JobSpec) -> tuple[list[Setup], list[BlobRef]]:
        """By shard, how it is to begin anew; and what is of use no more."""
        self.generation += 1
        self.restoring = set(range(self.shards))
        spent = list(self._unfinished())
        self.parts.clear()
        setups = [Setup(job=job, generation=self.generation) for _ in range(self.shards)]
        for shard, part in self.whole.items():
            setups[shard].snapshot.CopyFrom(part.state)
        return setups, spent

    def end(self) -> list[BlobRef]:
        """The job is over: all that is here."""
        return [*self._unfinished(), *(part.state for part in self.whole.values())]

    def _unfinished(self) -> Iterator[BlobRef]:
        return (part.state for parts in self.parts.values() for part in parts.values())
