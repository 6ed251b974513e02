"""The coordinator of an elastic job: ranks are added at a commit, and removed when their host goes.

The number of ranks changes as after a loss (hfdt/engine/recovery.py): all ranks end, and as many as there are slots
start from a commit. The ranks make that commit when they are asked (hfdt/worker/suspension.py), so that no step is
repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fdt.launch.hosts import Host, allot
from fdt.report import quantity
from fdt.rpc.session_pb2 import Command, Event, Failed, Fault, Finished, Membership, Note, Suspend
from fdt.supervise import Outcome
from hfdt.engine.coordinator import RanksCoordinator
from hfdt.engine.host_pool import HostPool, changes, total
from hfdt.engine.recovery import RankRecovery

REMOVE_S = 5.0  # how long ranks may take for the commit at which others leave


@dataclass(frozen=True)
class SizeLimits:
    """The limits of a run's size.

    Attributes:
        least: The fewest ranks.
        most: The most ranks; 0: no limit.
        timeout_s: How long training may wait for `least` slots.
    """

    least: int
    most: int = 0
    timeout_s: float = 600.0

    def size(self, hosts: Sequence[Host]) -> int:
        """Return the number of ranks on these hosts; less than `least` where they are too few."""
        return min(total(hosts), self.most or total(hosts))


class GrowingCoordinator(RanksCoordinator):
    """The coordinator of one job on the slots of `pool`.

    Attributes:
        asked: The time at which the ranks were asked to commit and end the epoch, by the clock of `tick`; else None.
    """

    def __init__(self, recovery: RankRecovery, pool: HostPool, limits: SizeLimits) -> None:
        super().__init__(recovery)
        self._pool, self._limits = pool, limits
        self.asked: float | None = None
        self._paused, self._until = False, 0.0  # there are too few slots; the end of the wait, 0.0: not yet known

    def from_client(self, command: Command) -> Outcome:
        """Implement Coordinator: an epoch begins with the slots that there are."""
        outcome = super().from_client(command)
        if self._paused and command.HasField("finish"):
            self.done = True  # nothing is left to train
            return Outcome(events=[Event(job=self._job, finished=Finished())])
        if self._paused or outcome.relaunch or not self._recovery.elastic or not command.HasField("epoch"):
            return outcome
        return self._resized() if self.asked is not None or self._pool.gone() or self._grows() else outcome

    def from_member(self, role: str, rank: int, event: Event) -> Outcome:
        """Implement Coordinator: the number of ranks may change at a commit."""
        outcome = super().from_member(role, rank, event)
        if self.done or not event.HasField("commit") or not outcome.events or not self._recovery.elastic:
            return outcome
        if self._suspend is None and (self.asked is not None or self._pool.gone() or self._grows()):
            return outcome.followed_by(self._resized())
        return outcome

    def lost(self, role: str, rank: int | None, failure: Failed) -> Outcome:
        """Implement Coordinator: without restarts, a lost rank's slot is used no more."""
        recovery = self._recovery
        if not self._job or not recovery.elastic or (recovery.restart_left and not self._pool.gone()):
            return super().lost(role, rank, failure)
        if not self._pool.gone():
            self._pool.lost(rank)
        size, member = self._limits.size(self._pool.available()), f"a {role}" if rank is None else f"{role} {rank}"
        if size >= self._limits.least:
            recovery.resize(size)
            how = f"training continues without it from {recovery.since}, with -np {size}"
            return self._again(failure, how, member, "left out")
        if self._pool.all_here:
            return self.fail(failure)
        fault = Fault(message=failure.message, member=member, action="left out")
        return Outcome(events=[Event(job=self._job, fault=fault)]).followed_by(self._pause())

    def short(self, room: int, failure: Failed) -> Outcome:
        """Implement Shrinking."""
        if not self._job or not self._recovery.elastic:
            return super().short(room, failure)
        return self._resized()

    def tick(self, now: float) -> Outcome:
        """Implement Timed: compare the slots with the ranks."""
        if self.done or not self._job:
            return Outcome()
        outcome = Outcome()
        while not self._pool.notes.empty():
            outcome.events.append(self._note(self._pool.notes.get()))
        if self._paused:
            return outcome.followed_by(self._waited(now))
        outcome = outcome.followed_by(super().tick(now))
        if self.done or outcome.relaunch or not self._recovery.elastic or self._suspend is not None:
            return outcome
        return outcome.followed_by(self._adapted(now))

    def _adapted(self, now: float) -> Outcome:
        """Ask the ranks of an epoch to commit where others are to come or to leave; without an epoch, let ranks leave.

        Ranks come when the next epoch begins, so that none start for a job that ends.
        """
        gone, pending = self._pool.gone(), self._pending
        if pending is not None and pending.HasField("epoch"):
            if self.asked is None and (gone or self._grows()):
                self.asked = now
                return Outcome(commands=[("worker", None, Command(job=self._job, suspend=Suspend()))])
            late = self.asked is not None and now - self.asked >= REMOVE_S
            return self._resized() if gone and late else Outcome()
        finishing = pending is not None and pending.HasField("finish")
        return self._resized() if gone and not finishing else Outcome()

    def _grows(self) -> bool:
        return self._announced and self._limits.size(self._pool.available()) > self._recovery.size

    def _resized(self) -> Outcome:
        """Start as many ranks as there are slots from the last commit, or wait for slots."""
        self.asked = None
        before, hosts = self._pool.in_use, self._pool.available()
        size = self._limits.size(hosts)
        if size < self._limits.least:
            return self._pause()
        self._paused = False
        self._recovery.resize(size)
        outcome = self._replayed()
        if self.failed:
            return outcome
        return outcome.followed_by(Outcome(events=self._memberships(before, allot(hosts, size))))

    def _memberships(self, before: Sequence[Host], after: Sequence[Host]) -> list[Event]:
        """Return an event for each host that comes or goes; the last says how the job goes on."""
        resized = f" instead of {total(before)}" if total(before) != total(after) else ""
        follows = f"training continues from {self._recovery.since}, with -np {total(after)}{resized}"
        found = sorted(changes(before, after).items(), key=lambda change: change[1])
        events = [self._membership(name, slots) for name, slots in found]
        if not events:
            return [self._note(follows)]
        events[-1].membership.message += f"; {follows}"
        return events

    def _membership(self, name: str, slots: int) -> Event:
        action, member = "joined" if slots > 0 else "left", f"{name}:{abs(slots)}"
        text = f"{quantity(abs(slots), 'slot')} of {name} {action}"
        return Event(job=self._job, membership=Membership(message=text, member=member, action=action))

    def _pause(self) -> Outcome:
        """End the ranks until there are slots."""
        self._forget_ranks()
        self._paused, self._until, self.asked = True, 0.0, None
        return Outcome(
            pause=True, events=[self._note(f"{self._lack()}; training waits for more, {self._limit()} at most")]
        )

    def _waited(self, now: float) -> Outcome:
        self._until = self._until or now + self._limits.timeout_s
        if self._limits.size(self._pool.available()) >= self._limits.least:
            return self._resized()
        if now < self._until:
            return Outcome()
        return self.fail(Failed(message=f"{self._lack()}, and no more came within {self._limit()} (--elastic-timeout)"))

    def _lack(self) -> str:
        room = total(self._pool.available())
        return (
            f"{quantity(room, 'slot')} of at least {self._limits.least} (--min-np) can be used ({self._pool.listed()})"
        )

    def _limit(self) -> str:
        return f"{self._limits.timeout_s:g} s"

    def _note(self, text: str) -> Event:
        return Event(job=self._job, note=Note(text=text))
