"""What an engine decides in one job: what follows from each thing that happens."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from google.protobuf.message import Message

from fdt.errors import TooFew, UserError
from fdt.rpc.session_pb2 import Command, EpochEnd, Event, Failed, WorkerShare
from fdt.rpc.tensor_pb2 import BlobRef


@dataclass
class Outcome:
    """What follows from one input.

    `restart`: (role, rank) of lost members to replace; commands wait for the replacement.  `relaunch`: end all members
    and start so many workers instead, 0: no.  `commands`: (role, rank, command), rank None for all of the role.
    `drop`: blobs that nobody needs any more.  `kill`: members that are given up, alive as they may be.
    """

    relaunch: int = 0
    restart: list[tuple[str, int]] = field(default_factory=list)
    commands: list[tuple[str, int | None, Command]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    drop: list[BlobRef] = field(default_factory=list)
    kill: list[tuple[str, int]] = field(default_factory=list)

    def followed_by(self, other: "Outcome") -> "Outcome":
        """Both, this one first."""
        return Outcome(
            other.relaunch or self.relaunch,
            self.restart + other.restart,
            self.commands + other.commands,
            self.events + other.events,
            self.drop + other.drop,
            self.kill + other.kill,
        )


class Coordinator(Protocol):
    """What an engine decides in one job. No I/O, no clock, no threads.

    `done`: the job has ended. `failed`: it ended badly, and its members cannot be trusted with another.
    """

    done: bool
    failed: bool

    def from_client(self, command: Command) -> Outcome: ...

    def from_member(self, role: str, rank: int, event: Event) -> Outcome: ...

    def lost(self, role: str, rank: int | None, failure: Failed) -> Outcome:
        """A member is gone; `failure` says how. Rank None where nobody can tell which."""
        ...

    def fail(self, failure: Failed) -> Outcome: ...


@runtime_checkable
class Shrinking(Protocol):
    """A coordinator whose job may go on with fewer workers."""

    def short(self, room: int, failure: Failed) -> Outcome:
        """Not all workers can be started, but `room` can. Before the job's Setup, too."""
        ...


@runtime_checkable
class Timed(Protocol):
    """A coordinator that also acts when time passes."""

    def tick(self, now: float) -> Outcome:
        """`now`: time.monotonic(), a few times a second."""
        ...


def too_few(coordinator: Coordinator, error: UserError) -> Outcome:
    """What follows when workers could not be started."""
    failure = Failed(message=str(error))
    if isinstance(error, TooFew) and isinstance(coordinator, Shrinking):
        return coordinator.short(error.room, failure)
    return coordinator.lost("worker", None, failure)


def share_of(rank: int, end: EpochEnd) -> WorkerShare:
    """What the worker `rank` counted in an epoch, as the engine tells the client."""
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
    """Every blob that a message names, at any depth; maps and repeated fields hold none."""
    for _, value in message.ListFields():
        if isinstance(value, BlobRef):
            yield value
        elif isinstance(value, Message):
            yield from blobs_in(value)
