"""The job queue of a pool. It decides which job starts next; it has no clock, no thread and no I/O.

Pending jobs are ordered by priority, then by the slots that their user has now (fewest first), then by the slot-seconds
that the user had lately (fair share), then by arrival. A job that does not fit is overtaken by jobs that do. Three
rules prevent starvation. A job gains one priority for each PATIENCE later jobs that start before it, up to the highest
priority in the queue. After PATIENCE more it is overdue: it comes before all others, older jobs first. One job of a
user is overdue at a time, so a long queue of one user does not end the fair share. Nothing overtakes a job that was
first in the order and did not fit PATIENCE times.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fdt.cli.options import PRIORITIES
from fdt.errors import UsageError, UserError

HALF_LIFE_S = 24 * 3600.0  # of a user's usage
PATIENCE = 16
MAX_PENDING, MAX_PENDING_OF_USER = 256, 128
NO_QUOTA = 1 << 31


@dataclass(frozen=True)
class QueuedJob:
    """A job of the queue.

    Attributes:
        number: Its number, which rises in order of arrival.
        user: The user; "" where the server distinguishes no users.
        slots: The workers that it needs.
        priority: Higher starts first.
        name: A name for people.
        since: When its state began, by the caller's clock.
        passed: Later jobs that started while it could have.
        unfit: Jobs that started while this one was the first, and did not fit.
    """

    number: int
    user: str
    slots: int
    priority: int = 0
    name: str = ""
    since: float = 0.0
    passed: int = field(default=0, compare=False)
    unfit: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Quotas:
    """The most slots that a user's running jobs may have together. `default`: of users who are not named."""

    default: int = NO_QUOTA
    of_user: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Quotas":
        """Parse `2,alice=4`: two slots for every user, four for alice. Raises UsageError."""
        default, of_user = NO_QUOTA, {}
        for entry in text.split(","):
            user, equals, number = entry.strip().rpartition("=")
            if not number.isdecimal() or not int(number) or (equals and not user):
                raise UsageError(f"--quota must be a number of slots, or USER=SLOTS, as in 2,alice=4. Received: {text}")
            if user:
                of_user[user] = int(number)
            else:
                default = int(number)
        return cls(default, of_user)

    def of(self, user: str) -> int:
        """Return the user's quota."""
        return self.of_user.get(user, self.default)


class JobQueue:
    """The pending and running jobs of a pool of `slots`. Times are seconds of any one clock."""

    def __init__(self, slots: int, quotas: Quotas | None = None) -> None:
        self.slots, self._quotas = slots, quotas or Quotas()
        self.pending: dict[int, QueuedJob] = {}
        self.running: dict[int, QueuedJob] = {}
        self._usage: dict[str, tuple[float, float]] = {}  # slot-seconds of ended jobs, and when they were counted
        self._numbers = 0

    @property
    def free(self) -> int:
        """The slots that no running job has."""
        return self.slots - sum(job.slots for job in self.running.values())

    def most(self, user: str) -> int:
        """Return the most slots that a job of the user can have."""
        return min(self.slots, self._quotas.of(user))

    def submit(self, user: str, slots: int, priority: int, name: str, now: float) -> QueuedJob:
        """Add a job.

        Args:
            user: Its user.
            slots: The slots that it needs; 0: as many as the user may have.
            priority: Its priority.
            name: A name for people.
            now: The time.

        Raises:
            UserError: The queue is full, or the job could never start.
        """
        if slots > self.most(user):
            limit = "the quota of" if self._quotas.of(user) < self.slots else "all that are there for"
            raise UserError(f"the job needs {slots} slots, and {self.most(user)} are {limit} {user or 'a job'}")
        if not PRIORITIES[0] <= priority <= PRIORITIES[1]:
            raise UserError("--priority must be from {} to {}. Received: {}".format(*PRIORITIES, priority))
        theirs = sum(job.user == user for job in self.pending.values())
        for count, most, whose in (
            (theirs, MAX_PENDING_OF_USER, "of this user "),
            (len(self.pending), MAX_PENDING, ""),
        ):
            if count >= most:
                raise UserError(f"{count} jobs {whose}wait, the most that may; try later")
        self._numbers += 1
        job = QueuedJob(self._numbers, user, slots or self.most(user), priority, name, now)
        self.pending[job.number] = job
        return job

    def start(self, now: float) -> list[QueuedJob]:
        """Move all jobs that may start now from pending to running, and return them."""
        started = []
        while (job := self._next(now)) is not None:
            top = self._top()
            del self.pending[job.number]
            for other in self.pending.values():
                if other.number < job.number and self._within_quota(other):
                    self.pending[other.number] = replace(other, passed=other.passed + 1)
                elif other.number > job.number and other.user == job.user and _overdue(job, top):
                    self.pending[other.number] = replace(other, passed=min(other.passed, _to_reach(top, other)))
            self.running[job.number] = replace(job, since=now)
            started.append(job)
        return started

    def end(self, number: int, now: float) -> None:
        """Remove a pending or running job. The number of no such job has no effect."""
        self.pending.pop(number, None)
        job = self.running.pop(number, None)
        if job is not None:
            self._usage[job.user] = (self._used(job.user, now) + job.slots * (now - job.since), now)
            self._usage = {user: at for user, at in self._usage.items() if self._used(user, now) > 0.01}

    def ordered(self, now: float) -> list[QueuedJob]:
        """Return the pending jobs, the next first."""
        return sorted(self.pending.values(), key=self._key(now))

    def reasons(self, now: float) -> dict[int, str]:
        """Return why each pending job waits, by its number, in Slurm's words: Quota, Resources or Priority."""
        reasons: dict[int, str] = {}
        for job in self.ordered(now):
            first = "Resources" not in reasons.values()
            reasons[job.number] = "Quota" if not self._within_quota(job) else "Resources" if first else "Priority"
        return reasons

    def _next(self, now: float) -> QueuedJob | None:
        eligible = [job for job in self.ordered(now) if self._within_quota(job)]
        if not eligible:
            return None
        first, free = eligible[0], self.free
        if first.slots <= free:
            return first
        fitting = next((job for job in eligible if job.slots <= free), None)
        if fitting is None or first.unfit >= PATIENCE:
            return None
        self.pending[first.number] = replace(first, unfit=first.unfit + 1)
        return fitting

    def _key(self, now: float) -> Callable[[QueuedJob], tuple[bool, int, int, float, int]]:
        top = self._top()
        held: Counter[str] = Counter()
        used = {user: self._used(user, now) for user in {job.user for job in self.pending.values()}}
        for job in self.running.values():
            held[job.user] += job.slots
            if job.user in used:
                used[job.user] += job.slots * (now - job.since)

        def key(job: QueuedJob) -> tuple[bool, int, int, float, int]:
            if job.unfit >= PATIENCE or _overdue(job, top):
                return (False, 0, 0, 0.0, job.number)
            aged = min(top, job.priority + job.passed // PATIENCE)
            return (True, -aged, held[job.user], used[job.user], job.number)

        return key

    def _top(self) -> int:
        return max((job.priority for job in self.pending.values()), default=0)

    def _within_quota(self, job: QueuedJob) -> bool:
        theirs = sum(each.slots for each in self.running.values() if each.user == job.user)
        return theirs + job.slots <= self._quotas.of(job.user)

    def _used(self, user: str, now: float) -> float:
        value, at = self._usage.get(user, (0.0, now))
        return float(value * 0.5 ** ((now - at) / HALF_LIFE_S))


def _to_reach(top: int, job: QueuedJob) -> int:
    """Return the later starts after which a job has the priority `top`."""
    return (top - job.priority) * PATIENCE


def _overdue(job: QueuedJob, top: int) -> bool:
    return job.passed >= _to_reach(top, job) + PATIENCE
