"""The server of TrainingService for one Engine, embedded in a command; frontends/pool/service.py serves several."""

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Protocol

import grpc

from fdt import __version__
from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.rpc import training_pb2_grpc
from fdt.rpc.session_pb2 import Command, Event, Failed, Note
from fdt.rpc.training_pb2 import HelloReply, HelloRequest
from fdt.security.auth import TlsIdentity
from fdt.service.blobs import BlobServicer
from fdt.service.transport import bind, new_server, stop_server


class Engine(Protocol):
    """Trains jobs on its own members, one job at a time. Members keep running between jobs.

    Attributes:
        name: "hfdt" or "nfdt".
        workers: The number of workers.
        run_dir: The directory of the logs.
        blobs: The store of the jobs' blobs.
    """

    name: str
    workers: int
    run_dir: Path
    blobs: LocalBlobs

    def start(self) -> None:
        """Start the members and return at once; they attach when they are ready. A second call has no effect."""

    def train(self, commands: Iterator[Command]) -> Generator[Event, None, None]:
        """Train one job.

        Args:
            commands: Setup first, Finish last. If they end earlier, the client is lost and the job is abandoned.

        Yields:
            The job's events. A failure of the job is a last Failed event; the engine can then train the next job.

        Raises:
            UserError: Members cannot be started; raised at once.
        """

    def stop(self) -> None:
        """End the members, within 5 s, and remove the blobs. A second call has no effect."""


POLL_S = 0.2


class FairQueue:
    """A queue of callers, of which the first has the turn. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[object] = deque()  # the first caller has the turn
        self._changed = threading.Condition()

    @property
    def taken(self) -> bool:
        """Whether a caller would have to wait."""
        return bool(self._waiting)

    @contextlib.contextmanager
    def turn(self, wanted: Callable[[], bool]) -> Iterator[bool]:
        """Wait for the turn and keep it within the context.

        Args:
            wanted: Called a few times a second; the caller gives up when it returns False.

        Yields:
            Whether the caller has the turn; False: it gave up.
        """
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
        try:
            yield self._come(ticket, wanted) and wanted()
        finally:
            with self._changed:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def _come(self, ticket: object, wanted: Callable[[], bool]) -> bool:
        with self._changed:
            while self._waiting[0] is not ticket:
                if not wanted():
                    return False
                self._changed.wait(POLL_S)
            return True


ALLOWED = ("setup", "epoch", "step", "end_epoch", "evaluate", "feed", "suspend", "finish")  # only the engine sends Exit


class CommandOrder:
    """The commands of one job, up to the first that is out of order; `fault` is then the reason, otherwise ""."""

    def __init__(self, commands: Iterator[Command]) -> None:
        self._commands = commands
        self._job = ""
        self.fault = ""

    def __iter__(self) -> Iterator[Command]:
        for command in self._commands:
            self.fault = self._fault_of(command)
            if self.fault:
                return
            self._job = command.job
            yield command

    def _fault_of(self, command: Command) -> str:
        kind = command.WhichOneof("kind")
        if kind not in ALLOWED:
            return f"a client's command must be one of {', '.join(ALLOWED)}. Received: {kind or 'none'}"
        if not command.job:
            return "a command must name its job"
        if not self._job:
            return "" if kind == "setup" else f"a job must begin with setup. Received: {kind}"
        if kind == "setup":
            return "a job must be set up once; another job needs another call. Received: a second setup"
        return "" if command.job == self._job else f"a call must concern one job. Received: {command.job!r} too"


MAX_WAITING = 16  # jobs


class RunningServer:
    """A server that listens. `address`: the address that clients call."""

    def __init__(self, server: grpc.Server, address: str) -> None:
        self.address = address
        self._server = server

    def stop(self) -> None:
        """End the calls under way and stop listening. The engine's owner stops the engine."""
        stop_server(self._server)


def serve(engine: Engine, address: str, token: str, identity: TlsIdentity | None = None) -> RunningServer:
    """Serve `engine`.

    Args:
        engine: The engine that trains.
        address: "HOST:PORT" (port 0: any free one) or "unix:PATH".
        token: The token that callers must send.
        identity: The certificate for TLS.

    Raises:
        UsageError: The address is not local and there is no `identity`.
        UserError: The address is in use.
    """
    server = new_server(token, identity)
    training_pb2_grpc.add_TrainingServiceServicer_to_server(_TrainingServicer(engine), server)
    return listen(server, engine.blobs, address, identity)


def listen(server: grpc.Server, blobs: LocalBlobs, address: str, identity: TlsIdentity | None) -> RunningServer:
    """Add BlobService to a server and start it; the arguments and errors are those of `serve`."""
    training_pb2_grpc.add_BlobServiceServicer_to_server(BlobServicer(blobs), server)
    bound = bind(server, address, identity)
    server.start()
    return RunningServer(server, bound)


class _TrainingServicer(training_pb2_grpc.TrainingServiceServicer):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._nonce = engine.blobs.put(b"training").id
        self._admitted = threading.BoundedSemaphore(1 + MAX_WAITING)
        self._turns = FairQueue()

    def Hello(self, request: HelloRequest, context: grpc.ServicerContext) -> HelloReply:
        return HelloReply(
            engine=self._engine.name,
            version=__version__,
            workers=self._engine.workers,
            blobs=str(self._engine.blobs.directory),
            nonce=self._nonce,
            run_dir=str(self._engine.run_dir),
        )

    def Train(self, request_iterator: Iterator[Command], context: grpc.ServicerContext) -> Iterator[Event]:
        if not self._admitted.acquire(blocking=False):
            refusal = f"the engine trains a job, and {MAX_WAITING} others wait, the most that may; try later"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        try:
            yield from self._train(until_broken(request_iterator), context)
        finally:
            self._admitted.release()

    def _train(self, commands: Iterator[Command], context: grpc.ServicerContext) -> Iterator[Event]:
        if self._turns.taken:
            yield Event(note=Note(text="waiting: the engine trains another job"))
        ordered = CommandOrder(commands)
        rest = iter(ordered)
        first = list(itertools.islice(rest, 1))  # a silent client must not make the others wait
        with self._turns.turn(context.is_active) as ours:  # not ours: the caller gave up waiting
            if ours and first:
                yield from self._trained(first[0].job, itertools.chain(first, rest))
        if ordered.fault:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, ordered.fault)

    def _trained(self, job: str, commands: Iterator[Command]) -> Iterator[Event]:
        """Train the job. Where members cannot start or an option is invalid, it fails with that message, not gRPC's."""
        try:
            yield from self._engine.train(commands)
        except UserError as error:
            yield Event(job=job, failed=Failed(message=str(error)))


def until_broken(commands: Iterator[Command]) -> Iterator[Command]:
    """Yield the client's commands; a stream that breaks ends them early, as Engine.train expects."""
    try:
        yield from commands
    except Exception:  # gRPC raises several kinds of errors here; all mean that the client is lost
        return
