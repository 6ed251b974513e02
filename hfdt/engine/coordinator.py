"""What HFDT's engine decides: one job's commands and events in, what to pass on out. No I/O, no clock, no threads.

All ranks get the client's commands. Of what ranks say, the client hears one voice: rank 0's logs and state (all ranks
hold the same), everybody's counts added.
"""

from collections.abc import Iterable

from fdt.job import FEED_WINDOW
from fdt.rpc.session_pb2 import Command, Event, Failed, Fault, FeedWanted, Note, Ready, Standing, Where
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.supervise.outcome import Outcome, blobs_in, share_of
from hfdt.engine.recovery import RankRecovery
from hfdt.engine.stalls import StalledRank, Stalls

# The client's commands by what answers them; one is under way at a time.
_ANSWERS = {"epoch": "epoch_end", "evaluate": "evaluated", "finish": "finished"}


class RanksCoordinator:
    """One job, on as many ranks as `recovery` says. `done`: it has ended, well (`failed` false) or not."""

    def __init__(self, recovery: RankRecovery) -> None:
        self._recovery = recovery
        self._job = ""
        self._waiting: dict[str, dict[int, Event]] = {}
        self._wanted: dict[tuple[str, int], dict[int, int]] = {}
        self._fed: dict[tuple[str, int], list[tuple[int, BlobRef]]] = {}
        self._changed: list[BlobRef] = []
        self._lost_early: list[tuple[str, int | None, Failed]] = []  # before there was a job to say what follows
        self._short_early: tuple[int, Failed] | None = None  # likewise
        self._pending: Command | None = None  # what the ranks have not answered
        self._stalls: Stalls | None = None
        self._stall_s = 0.0
        self._standing: dict[int, Standing] = {}  # said since the last tick
        self._announced = False  # the client knows that they are ready
        self.done = self.failed = False

    def from_client(self, command: Command) -> Outcome:
        self._job = command.job
        kind = command.WhichOneof("kind")
        if kind == "setup":
            self._recovery.begin(command)
            self._stall_s, self._stalls = float(command.setup.job.options.get("stall_timeout", "0")), None
        elif kind in _ANSWERS:
            self._pending = command
        if kind == "feed":
            batch = command.feed
            self._fed.setdefault((batch.name, batch.epoch), []).append((batch.index, batch.arrays))
        elif kind in ("epoch", "step"):
            self._changed += blobs_in(getattr(command, kind))
        outcome = Outcome(commands=[("worker", None, command)])
        early, self._lost_early = self._lost_early, []
        for role, rank, failure in early[:1]:  # all start again: that makes up for the others, too
            outcome = self.lost(role, rank, failure)
        if self._short_early is not None:
            short, self._short_early = self._short_early, None
            outcome = self.short(*short)
        return outcome

    def from_member(self, role: str, rank: int, event: Event) -> Outcome:
        """What a rank's event means for the client; events of earlier jobs are passed over."""
        if self.done or event.job not in ("", self._job):
            return Outcome(drop=list(blobs_in(event)))
        kind = event.WhichOneof("kind")
        if kind == "failed":
            return self.fail(event.failed)
        if kind in ("progress", "output") or (kind == "note" and rank == 0):
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
        """All ranks start anew from the last commit, where that is wanted; else the job ends."""
        if not self._job:
            self._lost_early.append((role, rank, failure))
            return Outcome()
        how = self._recovery.lose()
        member = f"a {role}" if rank is None else f"{role} {rank}"
        return self._again(failure, how, member, "restarted") if how else self.fail(failure)

    def short(self, room: int, failure: Failed) -> Outcome:
        """The ranks that there is room for take up the last commit, where so few are allowed; else it is a loss."""
        if not self._job:
            self._short_early = room, failure
            return Outcome()
        missing = self._recovery.size - room
        how = self._recovery.shrink(room)
        if not how:
            return self.lost("worker", None, failure)
        return self._again(failure, how, f"{missing} worker{'s' if missing > 1 else ''}", "left out")

    def _again(self, failure: Failed, how: str, member: str, action: str) -> Outcome:
        recovery = self._recovery
        self._waiting.clear()
        self._stalls = None
        self._standing.clear()  # perhaps of ranks that there will not be
        outcome = Outcome(relaunch=recovery.size)
        outcome.commands += [("worker", None, command) for command in recovery.replay(self._pending)]
        fault = Fault(message=f"{failure.message}; {how}", member=member, action=f"{action} from {recovery.since}")
        outcome.events.append(Event(job=self._job, fault=fault))
        return outcome

    def tick(self, now: float) -> Outcome:
        """Ranks that keep others waiting are named; then they count as lost."""
        if self._stalls is None:
            self._stalls = Stalls(self._recovery.size, self._stall_s, now)
        for rank, standing in self._standing.items():
            self._stalls.said(rank, standing, now)
        self._standing.clear()
        outcome, late = Outcome(), self._stalls.late(now)
        if (self._pending is not None or not self._announced) and self._stalls.due(now):
            outcome.commands.append(("worker", None, Command(job=self._job, where=Where())))
        for each in late:
            outcome.commands.append(("worker", each.rank, Command(job=self._job, where=Where(dump=True))))
        given_up = [each for each in late if each.given_up]
        if not given_up:
            outcome.events += [Event(job=self._job, note=Note(text=_named(each))) for each in late]
            return outcome
        message = "; ".join(f"{_named(each)}, longer than --stall-timeout allows" for each in given_up)
        outcome = self.lost("worker", given_up[0].rank, Failed(message=message))
        outcome.kill += [("worker", each.rank) for each in given_up]
        return outcome

    def fail(self, failure: Failed) -> Outcome:
        """End the job: what one rank cannot do, none can."""
        self.done = self.failed = True
        return Outcome(events=[Event(job=self._job, failed=failure)])

    def _gather(self, kind: str, rank: int, event: Event) -> Outcome:
        """Wait until every rank has said the same kind of thing, then say it once."""
        said = self._waiting.setdefault(kind, {})
        said[rank] = event
        if len(said) < self._recovery.size:
            return Outcome()
        del self._waiting[kind]
        first = said[0]
        if kind == "epoch_end":
            _add_counts(first, said.values())
            self._recovery.commit(first.epoch_end.epoch, first.epoch_end.state)
        elif kind == "ready":
            if self._announced:
                return Outcome()  # ranks that started again
            self._announced = True
            first.ready.notes = _distinct_lines(e.ready for _, e in sorted(said.items()))
            first.ready.notes += f"\n{self._recovery.note}" if self._recovery.note else ""
        if self._pending is not None and _ANSWERS[str(self._pending.WhichOneof("kind"))] == kind:
            self._pending = None
        self.done = kind == "finished"
        drop, self._changed = self._changed, []
        return Outcome(events=[first], drop=drop)

    def _feed_wanted(self, rank: int, wanted: FeedWanted) -> Outcome:
        """Ask the client for what the slowest rank has room for, and forget the batches that all ranks have taken."""
        key = wanted.name, wanted.epoch
        by_rank = self._wanted.setdefault(key, {})
        by_rank[rank] = wanted.up_to
        if len(by_rank) < self._recovery.size:
            return Outcome()
        up_to = min(by_rank.values())
        event = Event(job=self._job, feed_wanted=FeedWanted(name=wanted.name, epoch=wanted.epoch, up_to=up_to))
        return Outcome(events=[event], drop=self._taken(key, up_to))

    def _taken(self, key: tuple[str, int], up_to: int) -> list[BlobRef]:
        fed = self._fed.get(key, [])
        self._fed[key] = [(index, ref) for index, ref in fed if index >= up_to - FEED_WINDOW]
        return [ref for index, ref in fed if index < up_to - FEED_WINDOW]


def _named(late: StalledRank) -> str:
    where = (
        f"it is at {late.place}, its stacks are in {late.log}"
        if late.place
        else "it does not answer: stopped, or its host is"
    )
    return f"worker {late.rank} has kept the others waiting for {late.seconds:.0f} s: {where}"


def _add_counts(first: Event, events: Iterable[Event]) -> None:
    """Put every rank's counts into rank 0's EpochEnd."""
    end = first.epoch_end
    shares = [share_of(e.rank, e.epoch_end) for e in events]
    end.workers.extend(sorted(shares, key=lambda share: share.rank))
    end.samples = sum(share.samples for share in shares)
    end.seconds = max(share.seconds for share in shares)
    end.bytes_sent = sum(share.bytes_sent for share in shares)
    end.bytes_received = sum(share.bytes_received for share in shares)


def _distinct_lines(readies: Iterable[Ready]) -> str:
    return "\n".join(dict.fromkeys(line for ready in readies for line in ready.notes.splitlines() if line))
