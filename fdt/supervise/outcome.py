"""The decisions of an engine in one job: the Coordinator protocol, and the Outcome of each event."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from google.protobuf.message import Message

from fdt.errors import TooFew, UserError
from fdt.rpc.session_pb2 import Command, EpochEnd, Event, Failed, WorkerShare
from fdt.rpc.tensor_pb2 import BlobRef


@dataclass
class Outcome:
    """The consequences of one event of a job.

    Attributes:
        relaunch: End all members and start this many workers instead; 0: do not.
        restart: (role, rank) of lost members to replace. Commands to them wait for the replacement.
        commands: (role, rank, command) to send; rank None: to all members of the role.
        events: To send to the client.
        drop: Blobs that are needed no longer.
        kill: (role, rank) of members to kill, even if they are still running.
    """

    relaunch: int = 0
    restart: list[tuple[str, int]] = field(default_factory=list)
    commands: list[tuple[str, int | None, Command]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    drop: list[BlobRef] = field(default_factory=list)
    kill: list[tuple[str, int]] = field(default_factory=list)

    def followed_by(self, other: "Outcome") -> "Outcome":
        """Return an outcome with the consequences of both, this one's first."""
        return Outcome(
            other.relaunch or self.relaunch,
            self.restart + other.restart,
            self.commands + other.commands,
            self.events + other.events,
            self.drop + other.drop,
            self.kill + other.kill,
        )


class Coordinator(Protocol):
    """The decisions of an engine in one job. It does no I/O, reads no clock and starts no thread.

    Attributes:
        done: The job has ended.
        failed: The job ended with a failure, so its members must not train another job.
    """

    done: bool
    failed: bool

    def from_client(self, command: Command) -> Outcome:
        """Handle a command of the client."""
        ...

    def from_member(self, role: str, rank: int, event: Event) -> Outcome:
        """Handle an event that a member sent."""
        ...

    def lost(self, role: str, rank: int | None, failure: Failed) -> Outcome:
        """Handle the loss of a member; `failure` states the cause. `rank` is None where it is unknown."""
        ...

    def fail(self, failure: Failed) -> Outcome:
        """End the job with `failure`."""
        ...


@runtime_checkable
class Shrinking(Protocol):
    """A coordinator whose job can continue with fewer workers."""

    def short(self, room: int, failure: Failed) -> Outcome:
        """Continue with `room` workers, as no more can be started. May be called before the job's Setup."""
        ...


@runtime_checkable
class Timed(Protocol):
    """A coordinator that also acts when time passes."""

    def tick(self, now: float) -> Outcome:
        """Handle the passing of time; called a few times a second with `now` = time.monotonic(), in seconds."""
        ...


def too_few(coordinator: Coordinator, error: UserError) -> Outcome:
    """Return the outcome of workers that could not be started."""
    failure = Failed(message=str(error))
    if isinstance(error, TooFew) and isinstance(coordinator, Shrinking):
        return coordinator.short(error.room, failure)
    return coordinator.lost("worker", None, failure)


def share_of(rank: int, end: EpochEnd) -> WorkerShare:
    """Return the counts of worker `rank` in an epoch, as the engine reports them to the client."""
    return WorkerShare(
        rank=rank,
        steps=end.steps,
        samples=end.samples,
        seconds=end.seconds,
        bytes_sent=end.bytes_sent,
        bytes_received=end.bytes_received,
        busy_seconds=end.busy_seconds,
    )


def blobs_in(message: Message) -> Iterator[BlobRef]:
    """Yield every blob that a message names, at any depth, except in maps and repeated fields, which hold none."""
    for _, value in message.ListFields():
        if isinstance(value, BlobRef):
            yield value
        elif isinstance(value, Message):
            yield from blobs_in(value)
