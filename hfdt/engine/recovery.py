"""The recovery state of a job after the loss of a rank: its Setup, the last commit, and the restarts that are left.

A commit is the state at the end of an epoch, which is equal on all ranks. Ranks in a collective cannot be replaced one
by one. So all of them restart, get the Setup with that state, and train the interrupted epoch again; a pipeline
advances to it by itself (fdt/data/graph.py).

A commit is in shared memory, or on disk where that is full, for as long as the job runs. Each of its blobs has a
checksum, which is compared before ranks restart from it.
"""

import zlib
from collections.abc import Iterator, Mapping

from google.protobuf.message import Message

from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.job import BatchHooks, number_of
from fdt.rpc.job_pb2 import JobSpec, State
from fdt.rpc.session_pb2 import Command, Commit
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.supervise import blobs_in


class RankRecovery:
    """The recovery of a job on `size` ranks.

    `restarts`: how often all ranks may still be restarted; after that the job continues with fewer ranks, at least
    `least`. `elastic`: the number of ranks may change at any commit.
    """

    def __init__(self, blobs: LocalBlobs, size: int, *, elastic: bool = False) -> None:
        self.size = self.least = size
        self.restarts = self.used = 0
        self.elastic = elastic
        self.note = ""  # why losses end this job although recovery was requested
        self._epoch_end = "the beginning"  # the name of `_kept`
        self._damaged = ""  # the last commit that was found damaged
        self._blobs, self._checksums = blobs, dict[str, int]()
        self._setup = Command()
        self._kept = State()
        self._begin: Commit | None = None  # a commit within the epoch after `_kept`

    def begin(self, setup: Command) -> None:
        """Start a job: its options decide how it recovers."""
        self._setup.CopyFrom(setup)
        job = setup.setup.job
        restarts, least = (int(number_of(job.options, name)) for name in ("restarts", "min_np"))
        if not restarts and not least and not self.elastic:
            return
        reason = _not_replayed(job)
        if reason and self.elastic:
            self.elastic, self.note = (
                False,
                f"the number of workers does not change, and no loss is recovered: {reason}",
            )
        elif reason:
            self.note = f"--restarts and --min-np are not used: {reason}"
        else:
            self.restarts, self.least = restarts, least or self.size

    def settle(self, chosen: Mapping[str, str]) -> None:
        """Let restarted ranks take these options, which the first ranks chose."""
        self._setup.setup.job.options.update(chosen)

    @property
    def wanted(self) -> bool:
        """Whether the job may continue after a loss."""
        return self.elastic or self.restarts > 0 or self.least < self.size

    @property
    def restart_left(self) -> bool:
        """Whether a loss may restart all ranks."""
        return self.used < self.restarts

    @property
    def since(self) -> str:
        """The point from which ranks restart."""
        if self._begin is None:
            return self._epoch_end
        return f"step {self._begin.step:,} of epoch {self._begin.epoch + 1}"

    def resize(self, size: int) -> None:
        """Set the number of ranks that `replay` is for."""
        self._verify()
        self.size = size

    def commit(self, epoch: int, state: State) -> None:
        """Store the state at the end of `epoch`, independently of the client's copy."""
        if not self.wanted or not state.model.id:
            return
        kept = State(model=self._keep(state.model), optimizer=self._keep(state.optimizer))
        self.drop()
        self._kept, self._epoch_end = kept, f"the end of epoch {epoch + 1}"

    def commit_step(self, commit: Commit) -> None:
        """Store a state within an epoch."""
        if not self.wanted:
            return
        self._drop_begin()
        self._begin = Commit()
        self._begin.CopyFrom(commit)
        for ref in blobs_in(self._begin):
            ref.CopyFrom(self._keep(ref))

    def lose(self) -> str:
        """Handle the loss of a rank: return how the job continues, perhaps with fewer ranks; "" where it cannot."""
        self._verify()
        if self.restart_left:
            self.used += 1
            return f"all workers restart from {self.since}, restart {self.used} of {self.restarts}"
        if self.size > self.least:
            self.size -= 1
            return f"training continues without it from {self.since}, with -np {self.size}"
        return ""

    def shrink(self, room: int) -> str:
        """Handle a start with `room` ranks only: return how the job continues with them; "" where they are too few."""
        if not self.least <= room < self.size:
            return ""
        self.resize(room)
        return f"training continues from {self.since}, with -np {room}"

    def pop_damaged(self) -> str:
        """Return and clear the name of a damaged commit that was dropped; "" if there is none."""
        damaged, self._damaged = self._damaged, ""
        return damaged

    def replay(self, pending: Command | None) -> Iterator[Command]:
        """Yield the commands for the restarted ranks. `pending` is the client's command that was not answered.

        Raises:
            UserError: The commit at the last epoch's end is damaged.
        """
        if not self._is_whole(self._kept):
            raise UserError(
                f"the commit at {self._epoch_end} is damaged, so no worker can restart from it; --run-dir saves each "
                "epoch's end on disk, from where --resume continues"
            )
        setup = Command()
        setup.CopyFrom(self._setup)
        if self._kept.model.id:
            setup.setup.job.state.CopyFrom(self._kept)
        yield setup
        if pending is not None:
            command = Command()
            command.CopyFrom(pending)
            if self._begin is not None and pending.epoch.epoch == self._begin.epoch and pending.HasField("epoch"):
                command.epoch.begin.CopyFrom(self._begin)
            yield command

    def drop(self) -> None:
        """Remove the commits."""
        self._drop_begin()
        self._remove(self._kept)
        self._kept = State()

    def _drop_begin(self) -> None:
        if self._begin is not None:
            self._remove(self._begin)
        self._begin = None

    def _verify(self) -> None:
        """Drop a damaged commit within an epoch: ranks then restart from the epoch's beginning."""
        if self._begin is not None and not self._is_whole(self._begin):
            self._damaged = self.since
            self._drop_begin()

    def _keep(self, ref: BlobRef) -> BlobRef:
        kept = self._blobs.keep(ref)
        try:
            self._checksums[kept.id] = zlib.crc32(self._blobs.get(kept))
        except KeyError:  # shorter than the rank said: it is not whole
            self._checksums[kept.id] = -1
        return kept

    def _is_whole(self, commit: Message) -> bool:
        try:
            return all(zlib.crc32(self._blobs.get(ref)) == self._checksums[ref.id] for ref in blobs_in(commit))
        except KeyError:  # cut short, or removed
            return False

    def _remove(self, commit: Message) -> None:
        for ref in blobs_in(commit):
            self._blobs.drop(ref)
            self._checksums.pop(ref.id, None)


def _not_replayed(job: JobSpec) -> str:
    """Return why an epoch of this job cannot be trained again; "" where it can."""
    if job.data.HasField("feed") or job.validation.HasField("feed"):
        return "the script's process reads the batches and cannot read those of an interrupted epoch again"
    if BatchHooks(job.fit.batch_hooks) is not BatchHooks.NONE:
        return "callbacks have already received steps of the interrupted epoch"
    return ""
