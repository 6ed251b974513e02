"""What a job needs to go on after a rank was lost: its Setup, the last commit, and how many losses it may have.

A commit is the state at an epoch's end, which all ranks hold alike. Ranks in a collective cannot be replaced one by
one, so all of them start anew, take the Setup with that state and train the interrupted epoch again; a pipeline walks
to it by itself (fdt/data/graph.py).
"""

from collections.abc import Iterator

from fdt.blobs import LocalBlobs
from fdt.job import BatchHooks
from fdt.rpc.job_pb2 import JobSpec, State
from fdt.rpc.session_pb2 import Command, Commit
from fdt.supervise.outcome import blobs_in


class RankRecovery:
    """`size`: ranks. `restarts`: whole crews that may still be started; then fewer ranks go on, down to `least`."""

    def __init__(self, blobs: LocalBlobs, size: int) -> None:
        self.size = self.least = size
        self.restarts = self.used = 0
        self.note = ""  # why losses end this job although recovery was asked for
        self.since = "the beginning"  # of what the ranks start from
        self._blobs = blobs
        self._setup = Command()
        self._kept = State()
        self._begin: Commit | None = None  # in the midst of the epoch after `_kept`

    def begin(self, setup: Command) -> None:
        """A job's Setup: its options say what is wanted."""
        self._setup.CopyFrom(setup)
        job = setup.setup.job
        restarts, least = (int(job.options.get(name, "0")) for name in ("restarts", "min_np"))
        if not restarts and not least:
            return
        reason = _not_replayed(job)
        if reason:
            self.note = f"--restarts and --min-np are not used: {reason}"
        else:
            self.restarts, self.least = restarts, least or self.size

    @property
    def wanted(self) -> bool:
        return self.restarts > 0 or self.least < self.size

    def commit(self, epoch: int, state: State) -> None:
        """Keep the state that the ranks reached at the end of `epoch`, whatever becomes of the client's."""
        if not self.wanted or not state.model.id:
            return
        kept = State(model=self._blobs.keep(state.model), optimizer=self._blobs.keep(state.optimizer))
        self.drop()
        self._kept, self.since = kept, f"the end of epoch {epoch + 1}"

    def commit_step(self, commit: Commit) -> None:
        """As `commit`, in the midst of an epoch."""
        if not self.wanted:
            return
        self._drop_begin()
        self._begin = Commit()
        self._begin.CopyFrom(commit)
        for ref in blobs_in(self._begin):
            ref.CopyFrom(self._blobs.keep(ref))
        self.since = f"step {commit.step:,} of epoch {commit.epoch + 1}"

    def lose(self) -> str:
        """A rank is gone: how the others go on, `size` of them, perhaps fewer than before. "": they cannot."""
        if self.used < self.restarts:
            self.used += 1
            return f"all start again from {self.since}, restart {self.used} of {self.restarts}"
        if self.size > self.least:
            self.size -= 1
            return f"{self.size} go on without it from {self.since}"
        return ""

    def shrink(self, room: int) -> str:
        """There is room for `room` ranks only: how these go on, `size` of them. "": they are too few."""
        if not self.least <= room < self.size:
            return ""
        self.size = room
        return f"{room} go on from {self.since}"

    def replay(self, pending: Command | None) -> Iterator[Command]:
        """What the new ranks are told; `pending`: the client's command that the lost ranks had not answered."""
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
        """Forget the commits."""
        self._drop_begin()
        for ref in (self._kept.model, self._kept.optimizer):
            self._blobs.drop(ref)
        self._kept = State()

    def _drop_begin(self) -> None:
        for ref in blobs_in(self._begin) if self._begin is not None else ():
            self._blobs.drop(ref)
        self._begin = None


def _not_replayed(job: JobSpec) -> str:
    """Why an epoch of this job cannot be trained again; "" where it can."""
    if job.data.HasField("feed") or job.validation.HasField("feed"):
        return "the script's process draws the batches, and those of an interrupted epoch are gone"
    if BatchHooks(job.fit.batch_hooks) is not BatchHooks.NONE:
        return "callbacks have already seen steps of an interrupted epoch"
    return ""
