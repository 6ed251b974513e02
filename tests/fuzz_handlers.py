"""Both engines' coordinators as handlers of messages, in process, for tests/fuzz.py.

A case is a conversation: its messages, each behind its sender and its length. Some of an honest one are left out,
repeated, or replaced by messages that are filled at random.
"""

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fdt import tensors
from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.rpc.job_pb2 import JobSpec, State
from fdt.rpc.session_pb2 import (
    Command,
    Epoch,
    EpochEnd,
    Event,
    Failed,
    Finish,
    Finished,
    Ready,
    Setup,
    WorkerShare,
)
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.service.server import ALLOWED, CommandOrder
from fdt.supervise import Outcome, PassedBlobs, Timed, blobs_in
from fdt.supervise.processes import ElasticCoordinator
from hfdt.engine.coordinator import RanksCoordinator
from hfdt.engine.recovery import RankRecovery
from nfdt.engine.coordinator import ServersCoordinator

JOB = "j"
HEAD = struct.Struct("<BH")
CLIENT, LOSS, TIME, JOIN = range(4)  # senders; MEMBERS: the server; above: the workers
MEMBERS, WORKERS = 4, 2
KINDS = [field.name for field in Event.DESCRIPTOR.oneofs_by_name["kind"].fields]
OPTIONS = {
    "restarts": ("1", "2"),
    "min_np": ("1", "2"),
    "checkpoint_every": ("0", "5"),
    "stall_timeout": ("3",),
    "overlap_epochs": ("1",),
    "suspendable": ("1",),
}
Filled = Callable[[Any, type], Any]
Handler = Callable[[bytes], object]


class NoSuchBlob(KeyError):
    """A message names a blob that does not exist; another KeyError is a mistake of a handler."""


class Store(LocalBlobs):
    """A store that raises NoSuchBlob."""

    def get(self, ref: BlobRef) -> memoryview:
        with self._named():
            return super().get(ref)

    def keep(self, ref: BlobRef) -> BlobRef:
        with self._named():
            return super().keep(ref)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise NoSuchBlob(*error.args) from None


JOB_ENDS = (UserError, ValueError, OSError, NoSuchBlob)  # the job ends with it, and its client gets the reason
Errors = tuple[type[Exception], ...]


def known_blob(folder: Path) -> BlobRef:
    """Write the blob that most messages name; return its reference."""
    data = tensors.pack([np.ones(3, np.float32)])
    (folder / "known").write_bytes(data)
    return BlobRef(id="known", nbytes=len(data))


def framed(messages: list[tuple[int, bytes]]) -> bytes:
    """Return the bytes of a conversation."""
    return b"".join(HEAD.pack(sender, len(data)) + data for sender, data in messages)


def frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of a conversation whose bytes may have been changed."""
    at = 0
    while at + HEAD.size <= len(data):
        sender, size = HEAD.unpack_from(data, at)
        at += HEAD.size
        yield sender, data[at : at + size]
        at += size


def job_conversation(rng: Any, filled: Filled, known: BlobRef) -> bytes:
    """Return what a client and the members of its job may send."""
    options = {name: rng.choice(values) for name, values in OPTIONS.items() if rng.random() < 0.4}
    setup = Setup(job=JobSpec(options=options))
    if rng.random() < 0.3:
        setup.job.MergeFrom(filled(rng, JobSpec))
    said: list[tuple[int, Any]] = [(CLIENT, Command(job=JOB, setup=setup)), *_job(known)]
    for _ in range(rng.randrange(8)):
        at = rng.randrange(1, len(said))
        match rng.randrange(4):
            case 0:
                said.pop(at) if len(said) > 2 else None
            case 1:
                said.insert(at, rng.choice(said))
            case _:
                said.insert(at, _filled(rng, filled, known))
    return framed([(sender, message.SerializeToString()) for sender, message in said])


def _job(known: BlobRef) -> Iterator[tuple[int, Any]]:
    """Yield the messages of a job of one epoch behind its setup."""
    server, workers = MEMBERS, range(MEMBERS + 1, MEMBERS + 1 + WORKERS)
    yield from ((sender, Event(job=JOB, ready=Ready(steps_per_epoch=2))) for sender in (server, *workers))
    yield CLIENT, Command(job=JOB, epoch=Epoch())
    state = State(model=known, optimizer=known)
    shares = [WorkerShare(rank=rank) for rank in range(WORKERS)]
    yield server, Event(job=JOB, epoch_end=EpochEnd(steps=2, state=state, workers=shares))
    for sender in workers:
        yield sender, Event(job=JOB, epoch_end=EpochEnd(steps=1, state=state, metrics=known))
    yield CLIENT, Command(job=JOB, finish=Finish())
    yield from ((sender, Event(job=JOB, finished=Finished())) for sender in (server, *workers))


def _filled(rng: Any, filled: Filled, known: BlobRef) -> tuple[int, Any]:
    """Return a message at random, most of them of the job."""
    sender = rng.choice([CLIENT, CLIENT, LOSS, TIME, JOIN, *range(MEMBERS, MEMBERS + 1 + WORKERS)])
    message = filled(rng, Command if sender == CLIENT else Event)
    if rng.random() < 0.9:
        message.job = JOB
        kind = rng.choice(ALLOWED if sender == CLIENT else KINDS)
        getattr(message, kind).MergeFrom(filled(rng, type(getattr(message, kind))))
    for ref in blobs_in(message):
        if rng.random() < 0.7:
            ref.CopyFrom(known)
    return sender, message


class Supervised:
    """A coordinator, and what the supervisor does: it drops blobs, and passes on no messages of a rank that is gone."""

    def __init__(self, coordinator: Any, blobs: LocalBlobs, commands: Iterator[Command]) -> None:
        self._coordinator, self._blobs, self._commands = coordinator, blobs, commands
        self._passed, self._there = PassedBlobs(blobs), set(range(WORKERS))
        self._now = 0.0

    def run(self, said: list[tuple[int, bytes]]) -> None:
        for sender, raw in said:
            self._execute(self._outcome(sender, raw))
            if self._coordinator.done:
                break
        self._passed.drop()

    def _execute(self, outcome: Outcome) -> None:
        self._there = set(range(outcome.relaunch)) or self._there | {rank for _, rank in outcome.restart}
        for event in outcome.events:
            self._passed.add(event)
        for ref in outcome.drop:
            self._blobs.drop(ref)

    def _outcome(self, sender: int, raw: bytes) -> Outcome:
        coordinator, rank = self._coordinator, (sender - MEMBERS - 1) % WORKERS
        if sender == CLIENT:
            command = next(self._commands, None)
            if command is None:
                return Outcome()
            self._passed.add(command)
            return coordinator.from_client(command)
        if sender == LOSS and self._there:
            return coordinator.lost("worker", self._there.pop(), Failed(message="a worker was lost"))
        if sender == TIME and isinstance(coordinator, Timed):
            self._now += 10.0
            return coordinator.tick(self._now)
        if sender == JOIN and isinstance(coordinator, ElasticCoordinator):
            return coordinator.left(WORKERS, "left") if len(raw) % 2 else coordinator.joined(WORKERS, "host")
        if sender == MEMBERS and isinstance(coordinator, ServersCoordinator):
            return coordinator.from_member("server", 0, Event.FromString(raw))
        if sender <= MEMBERS or rank not in self._there:
            return Outcome()
        return coordinator.from_member("worker", rank, Event.FromString(raw))


def coordinated(make: Callable[[], Any], blobs: LocalBlobs) -> Handler:
    """Return a handler of conversations, each by a new coordinator."""

    def handle(data: bytes) -> None:
        known_blob(blobs.directory)  # the case before may have dropped it
        said = [(sender, raw) for sender, raw in frames(data) if _parses(Command if sender == CLIENT else Event, raw)]
        commands = CommandOrder(Command.FromString(raw) for sender, raw in said if sender == CLIENT)
        Supervised(make(), blobs, iter(commands)).run(said)

    return handle


def _parses(kind: type, raw: bytes) -> bool:
    """Return whether a message reaches its handler; fdt/service/handlers.py refuses others."""
    try:
        kind.FromString(raw)  # type: ignore[attr-defined]
    except DecodeError:
        return False
    return True


def coordinators(folder: Path, filled: Filled) -> Iterator[tuple[str, Callable[[Any], bytes], Handler, Errors]]:
    """Yield for each coordinator its name, a maker of conversations, its handler, and the errors that it may raise."""
    blobs, known = Store(folder), known_blob(folder)
    makers: dict[str, Callable[[], Any]] = {
        "HFDT's coordinator": lambda: RanksCoordinator(RankRecovery(blobs, WORKERS)),
        "NFDT's coordinator": lambda: ServersCoordinator(WORKERS, ["unix:a"], blobs),
    }
    for name, make in makers.items():
        yield name, lambda rng: job_conversation(rng, filled, known), coordinated(make, blobs), JOB_ENDS
