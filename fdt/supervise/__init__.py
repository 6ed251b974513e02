"""Supervision of an engine's worker and server processes: start, watch, restart, end.

Here are the decisions of an engine in one job: the Coordinator protocol, and the outcome of each event and loss.
supervisor.py executes them.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from google.protobuf.message import Message

from fdt.blobs import LocalBlobs
from fdt.environment import is_chatter
from fdt.errors import TooFew, UserError
from fdt.job import FEED_WINDOW
from fdt.launch.mpirun import log_name
from fdt.rpc.session_pb2 import Command, EpochEnd, Event, Failed, FeedBatch, FeedWanted, WorkerShare
from fdt.rpc.tensor_pb2 import BlobRef


@dataclass
class Outcome:
    """The consequences of one event of a job.

    Attributes:
        relaunch: End all members and start this many workers instead; 0: do not.
        pause: End all members; a later `relaunch` starts others.
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
    pause: bool = False

    def followed_by(self, other: "Outcome") -> "Outcome":
        """Return an outcome with the consequences of both, this one's first."""
        return Outcome(
            other.relaunch or self.relaunch,
            self.restart + other.restart,
            self.commands + other.commands,
            self.events + other.events,
            self.drop + other.drop,
            self.kill + other.kill,
            self.pause or other.pause,
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

    def from_member(self, role: str, rank: int, event: Event) -> Outcome:
        """Handle an event that a member sent."""

    def lost(self, role: str, rank: int | None, failure: Failed) -> Outcome:
        """Handle the loss of a member; `failure` states the cause. `rank` is None where it is unknown."""

    def fail(self, failure: Failed) -> Outcome:
        """End the job with `failure`."""


@runtime_checkable
class Shrinking(Protocol):
    """A coordinator whose job can continue with fewer workers."""

    def short(self, room: int, failure: Failed) -> Outcome:
        """Continue with `room` workers, as no more can be started. May be called before the job's Setup."""


@runtime_checkable
class Timed(Protocol):
    """A coordinator that also acts when time passes."""

    def tick(self, now: float) -> Outcome:
        """Handle the passing of time; called a few times a second with `now` = time.monotonic(), in seconds."""


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
        memory_bytes=end.memory_bytes,
        staleness=end.staleness,
    )


def blobs_in(message: Message) -> Iterator[BlobRef]:
    """Yield every blob that a message names, at any depth, except in maps and repeated fields, which hold none."""
    for _, value in message.ListFields():
        if isinstance(value, BlobRef):
            yield value
        elif isinstance(value, Message):
            yield from blobs_in(value)


@dataclass
class Feeding:
    """Requests and batches by feed and epoch: the first index that each worker cannot take yet, and the fed batches."""

    _wanted: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)
    _fed: dict[tuple[str, int], list[tuple[int, BlobRef]]] = field(default_factory=dict)

    def fed(self, batch: FeedBatch) -> None:
        """Record a batch that the client sent."""
        self._fed.setdefault((batch.name, batch.epoch), []).append((batch.index, batch.arrays))

    def wants(self, rank: int, wanted: FeedWanted, workers: int) -> tuple[int, int, list[BlobRef]]:
        """Handle a worker's request for batches up to an index. A worker without a request releases no batch.

        Returns:
            The highest index of earlier requests, the lowest of all workers' (0: not all have sent one), and the
            batches that all workers have passed.
        """
        key = wanted.name, wanted.epoch
        by_rank = self._wanted.setdefault(key, {})
        highest = max(by_rank.values(), default=0)
        by_rank[rank] = wanted.up_to
        lowest = min(by_rank.values()) if len(by_rank) == workers else 0
        fed, first = self._fed.get(key, []), lowest - FEED_WINDOW
        self._fed[key] = [(index, ref) for index, ref in fed if index >= first]
        return highest, lowest, [ref for index, ref in fed if index < first]

    def passed(self, epoch: int) -> list[BlobRef]:
        """Return the batches of epochs up to `epoch`, which have ended."""
        keys = [key for key in self._fed if key[1] <= epoch]
        return [ref for key in keys for _, ref in self._fed.pop(key)]


FEW = 64  # the record is searched for dropped blobs only above this size, and then whenever it has doubled


class PassedBlobs:
    """Blobs that messages named. Receivers drop the blobs they read; `drop` drops all that remain."""

    def __init__(self, blobs: LocalBlobs) -> None:
        self._blobs = blobs
        self._refs: list[BlobRef] = []
        self._check_at = FEW

    def add(self, message: Message) -> None:
        """Record the message's blobs."""
        self._refs += (ref for ref in blobs_in(message) if ref.id)
        if len(self._refs) > self._check_at:
            self._refs = [ref for ref in self._refs if self._blobs.holds(ref.id)]
            self._check_at = max(FEW, 2 * len(self._refs))

    def drop(self) -> None:
        """Drop all recorded blobs."""
        for ref in self._refs:
            self._blobs.drop(ref)
        self._refs, self._check_at = [], FEW


TAIL_LINES = 15
SEARCHED_LINES = 500  # lines from a log's end that are searched for the last traceback
_MPI_INIT = re.compile(r"\*\*\* (An error occurred in MPI_Init\w*)")
_TAG = re.compile(r"\[\d+,(\d+)\]<std(?:out|err)>: ?")


def explain_loss(role: str, rank: int | None, cause: str, run_dir: Path) -> Failed:
    """Return a one-line message that names the process and the cause; `detail` is the end of its log."""
    name = f"a {role}" if rank is None else f"{role} {rank}"
    log = run_dir / f"{role}-{rank}.log"
    if rank is None or not log.exists():  # the process ran on another host, and mpirun collected its output
        log = run_dir / log_name(role)
    message = f"{name} was lost: {died_of(cause, log, rank)}; its log is {log}"
    return Failed(message=message, detail=tail(log, rank))


def died_of(cause: str, log: Path, rank: int | None = None) -> str:
    """Return `cause`, and the exception at the log's end if it ended the process: "exit code 1 (ValueError: no)".

    Where mpirun gave no reason for a failure of MPI_Init, Open MPI's settings in the environment are returned, too.
    """
    raised, within = "", False
    lines = tail(log, rank, lines=SEARCHED_LINES).splitlines()
    for line in lines:
        if line.startswith("Traceback (most recent call last)"):
            within = True
        elif within and line.strip() and not line.startswith(" "):
            raised, within = line.strip(), False
    end = "\n".join(lines[-TAIL_LINES:])
    failed = _MPI_INIT.search(end)
    if failed is not None and ": " not in cause:
        settings = ", ".join(f"{name}={value}" for name, value in os.environ.items() if name.startswith("OMPI_MCA_"))
        return f"{cause}: {failed[1]}{settings and f' with {settings}'}"
    shown = raised and not cause.startswith("signal") and raised in end
    return f"{cause} ({raised})" if shown else cause


def tail(log: Path, rank: int | None = None, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, or "" where there is none; of lines that mpirun tagged, only `rank`'s."""
    try:
        log_lines = [_untagged(line, rank) for line in log.read_text(errors="replace").splitlines()]
        return "\n".join([line for line in log_lines if line is not None and not is_chatter(line)][-lines:])
    except OSError:
        return ""


def _untagged(line: str, rank: int | None) -> str | None:
    """Return the line without mpirun's tag; None when it is another rank's."""
    tag = _TAG.match(line)
    if tag is None:
        return line
    return line[tag.end() :] if rank is None or int(tag[1]) == rank else None
