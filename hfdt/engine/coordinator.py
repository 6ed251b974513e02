"""The coordinator of one HFDT job: a state machine of commands and events, without I/O, clock or threads.

All ranks get the client's commands. The client gets one event for each set of the ranks' events: rank 0's logs and
state, which are equal on all ranks, with the counts of all ranks added.
"""

from collections.abc import Iterable

from fdt.errors import UserError
from fdt.job import number_of
from fdt.report import quantity
from fdt.rpc.session_pb2 import Command, Event, Failed, Fault, FeedWanted, Note, Standing, Where
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.supervise import Feeding, Outcome, blobs_in, share_of
from hfdt.engine.recovery import RankRecovery
from hfdt.engine.stalls import StalledRank, Stalls

# Each command of the client and the event that answers it. Only one command is pending at a time.
_ANSWERS = {"epoch": "epoch_end", "evaluate": "evaluated", "finish": "finished"}
REFUSE_S = 2.0  # time for all ranks to refuse a job; beyond it one of them waits for the others


class RanksCoordinator:
    """The coordinator of one job on `recovery.size` ranks. `done`: the job has ended; `failed`: its ranks must end."""

    def __init__(self, recovery: RankRecovery) -> None:
        self._recovery = recovery
        self._job = ""
        self._waiting: dict[str, dict[int, Event]] = {}
        self._feeding = Feeding()
        self._changed: list[BlobRef] = []
        self._lost_early: list[tuple[str, int | None, Failed]] = []  # lost before the job's Setup arrived
        self._short_early: tuple[int, Failed] | None = None  # too few ranks before the Setup arrived
        self._pending: Command | None = None  # the command that the ranks have not answered
        self._suspend: Command | None = None  # repeated to ranks that restart
        self._stalls: Stalls | None = None
        self._stall_s = 0.0
        self._standing: dict[int, Standing] = {}  # heartbeats since the last tick
        self._announced = False  # the client has got the Ready event
        self._refusals: dict[int, Failed] = {}
        self._refused_at = 0.0  # time of the first tick after a refusal
        self.done = self.failed = False

    def from_client(self, command: Command) -> Outcome:
        self._job = command.job
        kind = command.WhichOneof("kind")
        if kind == "setup":
            self._recovery.begin(command)
            self._stall_s, self._stalls = number_of(command.setup.job.options, "stall_timeout"), None
        elif kind in _ANSWERS:
            self._pending = command
        elif kind == "suspend":
            self._suspend = command
        if kind == "feed":
            self._feeding.fed(command.feed)
        elif kind in ("epoch", "step"):
            self._changed += blobs_in(getattr(command, kind))
        outcome = Outcome(commands=[("worker", None, command)])
        early, self._lost_early = self._lost_early, []
        for role, rank, failure in early[:1]:  # one restart of all ranks makes up for all early losses
            outcome = self.lost(role, rank, failure)
        if self._short_early is not None:
            short, self._short_early = self._short_early, None
            outcome = self.short(*short)
        return outcome

    def from_member(self, role: str, rank: int, event: Event) -> Outcome:
        """Handle a rank's event. Events of earlier jobs are ignored."""
        if self.done or event.job not in ("", self._job):
            return Outcome(drop=list(blobs_in(event)))
        kind = event.WhichOneof("kind")
        if kind == "failed":
            # Before the Setup it may follow from a loss, such as mpirun's, which the Setup handles.
            return Outcome() if self._lost_early else self._refused(rank, event.failed)
        if kind in ("progress", "output", "spans") or (kind == "note" and rank == 0):
            return Outcome(events=[event])
        if kind == "standing":
            self._standing[rank] = event.standing
            return Outcome()
        if kind == "commit":
            self._recovery.commit_step(event.commit)
            return Outcome(events=[event])
        if kind == "feed_wanted":
            return self._feed_wanted(rank, event.feed_wanted)
        return self._gather(kind, rank, event)

    def lost(self, role: str, rank: int | None, failure: Failed) -> Outcome:
        """Handle the loss of a rank: all ranks restart from the last commit if allowed, else the job ends."""
        if not self._job:
            self._lost_early.append((role, rank, failure))
            return Outcome()
        how = self._recovery.lose()
        member = f"a {role}" if rank is None else f"{role} {rank}"
        return self._again(failure, how, member, "restarted") if how else self.fail(failure)

    def short(self, room: int, failure: Failed) -> Outcome:
        """Handle a start with only `room` ranks: they resume the last commit if enough, else a rank counts as lost."""
        if not self._job:
            self._short_early = room, failure
            return Outcome()
        missing = self._recovery.size - room
        how = self._recovery.shrink(room)
        if not how:
            return self.lost("worker", None, failure)
        return self._again(failure, how, quantity(missing, "worker"), "left out")

    def _again(self, failure: Failed, how: str, member: str, action: str) -> Outcome:
        since = self._recovery.since
        fault = Fault(message=f"{failure.message}; {how}", member=member, action=f"{action} from {since}")
        outcome = self._replayed()
        if self.failed:
            why = outcome.events[0].failed.message
            return self.fail(Failed(message=f"{failure.message}; {why}", detail=failure.detail))
        return outcome.followed_by(Outcome(events=[Event(job=self._job, fault=fault)]))

    def _replayed(self) -> Outcome:
        """Start `recovery.size` new ranks from the last commit."""
        self._forget_ranks()
        try:
            again = [*self._recovery.replay(self._pending), *([self._suspend] if self._suspend is not None else [])]
        except UserError as error:
            return self.fail(Failed(message=str(error)))
        outcome = Outcome(relaunch=self._recovery.size, commands=[("worker", None, command) for command in again])
        if damaged := self._recovery.pop_damaged():
            text = f"the commit at {damaged} is damaged, and the one before it is used"
            outcome.events.append(Event(job=self._job, note=Note(text=text)))
        return outcome

    def _forget_ranks(self) -> None:
        """Forget what ranks have reported that do not exist after a restart."""
        self._waiting.clear()
        self._stalls = None
        self._standing.clear()
        self._refusals.clear()
        self._refused_at = 0.0

    def _refused(self, rank: int, failure: Failed) -> Outcome:
        """End the job. Ranks that have all refused it before it began can train the next."""
        if self._announced or not failure.refused:
            return self.fail(failure)
        self._refusals[rank] = failure
        if len(self._refusals) < self._recovery.size:
            return Outcome()
        outcome = self.fail(self._refusals[0])
        self.failed = False
        return outcome

    def tick(self, now: float) -> Outcome:
        """Name ranks that keep others waiting; later handle them as lost."""
        if self._refusals:
            self._refused_at = self._refused_at or now
            if now - self._refused_at > REFUSE_S:
                return self.fail(self._refusals[min(self._refusals)])
        if self._stalls is None:
            self._stalls = Stalls(self._recovery.size, self._stall_s, now)
        for rank, standing in self._standing.items():
            self._stalls.note(rank, standing, now)
        self._standing.clear()
        outcome, late = Outcome(), self._stalls.late(now)
        if (self._pending is not None or not self._announced) and self._stalls.due(now):
            outcome.commands.append(("worker", None, Command(job=self._job, where=Where())))
        for each in late:
            outcome.commands.append(("worker", each.rank, Command(job=self._job, where=Where(dump=True))))
        given_up = [each for each in late if each.given_up]
        if not given_up:
            outcome.events.extend(Event(job=self._job, note=Note(text=_named(each))) for each in late)
            return outcome
        message = "; ".join(f"{_named(each)}; --stall-timeout allows no longer" for each in given_up)
        outcome = self.lost("worker", given_up[0].rank, Failed(message=message))
        return outcome.followed_by(Outcome(kill=[("worker", each.rank) for each in given_up]))

    def fail(self, failure: Failed) -> Outcome:
        """End the job with an error; the ranks depend on each other. A refusal that has a remedy comes first."""
        self.done = self.failed = True
        first = next((each for each in self._refusals.values() if each.replica), failure)
        return Outcome(events=[Event(job=self._job, failed=first)])

    def _gather(self, kind: str, rank: int, event: Event) -> Outcome:
        """Collect events of one kind; return one event when all ranks have sent theirs."""
        events = self._waiting.setdefault(kind, {})
        events[rank] = event
        if len(events) < self._recovery.size:
            return Outcome()
        del self._waiting[kind]
        first = events[0]
        if kind == "epoch_end":
            _add_counts(first, events.values())
            self._recovery.commit(first.epoch_end.epoch, first.epoch_end.state)
        elif kind == "ready":
            if self._announced:
                return Outcome()  # ranks that were restarted
            self._announced = True
            self._recovery.settle(first.ready.chosen)
            lines = (line for _, e in sorted(events.items()) for line in e.ready.notes.splitlines() if line)
            first.ready.notes = "\n".join(dict.fromkeys(lines))
            first.ready.notes += f"\n{self._recovery.note}" if self._recovery.note else ""
        if self._pending is not None and _ANSWERS[str(self._pending.WhichOneof("kind"))] == kind:
            self._pending = None
        self.done = kind == "finished"
        drop, self._changed = self._changed, []
        return Outcome(events=[first], drop=drop)

    def _feed_wanted(self, rank: int, wanted: FeedWanted) -> Outcome:
        """Request the batches that the slowest rank has room for, and drop those that all ranks have taken."""
        _, up_to, taken = self._feeding.wants(rank, wanted, self._recovery.size)
        if not up_to:
            return Outcome()
        event = Event(job=self._job, feed_wanted=FeedWanted(name=wanted.name, epoch=wanted.epoch, up_to=up_to))
        return Outcome(events=[event], drop=taken)


def _named(late: StalledRank) -> str:
    where = (
        f"it is at {late.place}; its stacks are in {late.log}"
        if late.place
        else "it does not answer; its process or its host is stopped"
    )
    return f"worker {late.rank} has kept the others waiting for {late.seconds:.0f} s: {where}"


def _add_counts(first: Event, events: Iterable[Event]) -> None:
    """Add every rank's counts to rank 0's EpochEnd."""
    end = first.epoch_end
    shares = [share_of(e.rank, e.epoch_end) for e in events]
    end.workers.extend(sorted(shares, key=lambda share: share.rank))
    end.samples = sum(share.samples for share in shares)
    end.seconds = max(share.seconds for share in shares)
    end.bytes_sent = sum(share.bytes_sent for share in shares)
    end.bytes_received = sum(share.bytes_received for share in shares)
