"""The client's side of TrainingService: connections to an engine, which runs in this process or at a server."""

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from fdt import __version__
from fdt.blobs import Blobs
from fdt.errors import UsageError, UserError
from fdt.report import quantity
from fdt.rpc import training_pb2_grpc
from fdt.rpc.session_pb2 import Command, Event, JobRequest
from fdt.rpc.tensor_pb2 import Holder, HoldRequest
from fdt.rpc.training_pb2 import HelloReply, HelloRequest
from fdt.security.auth import TOKEN_VARIABLE, TlsIdentity, checked, credentials, new_token
from fdt.service.blobs import reachable_blobs
from fdt.service.transport import check_safe, open_channel, without_frames
from fdt.signals import held_back, undisturbed

if TYPE_CHECKING:
    from fdt.service.server import Engine

CONNECT_TIMEOUT_S = 30  # of a server that is busy; one that is not there answers at once


class TrainingClient:
    """A connection to an engine.

    Args:
        address: The engine's address.
        token: The engine's token.
        identity: The certificate for TLS.
        request: What each job asks of a pool; None: nothing.

    Attributes:
        hello: The engine's description of itself.
        blobs: The engine's blob store.

    Raises:
        UserError: No engine listens at `address`, the token is wrong, or TLS rejects a certificate.
    """

    def __init__(
        self, address: str, token: str, identity: TlsIdentity | None = None, request: JobRequest | None = None
    ) -> None:
        self._request = request
        self._channel = open_channel(address, identity)
        self._metadata = credentials(token)
        self._stub = training_pb2_grpc.TrainingServiceStub(self._channel)
        try:
            self.hello: HelloReply = self._stub.Hello(
                HelloRequest(version=__version__), metadata=self._metadata, timeout=CONNECT_TIMEOUT_S
            )
            holder = self._hold()
        except grpc.RpcError as error:
            self.close()
            raise refused(address, without_frames(error)) from None
        except BaseException:
            self.close()
            raise
        self.blobs: Blobs = reachable_blobs(self.hello, self._channel, self._metadata, holder)

    def train(self) -> "Conversation":
        """Begin a job."""
        return Conversation(self._stub, self._metadata, self._request)

    def close(self) -> None:
        """Close the connection. The server removes this client's blobs."""
        self._channel.close()

    def _hold(self) -> str:
        """Begin the call that lasts as long as this client; return what the ids of its blobs begin with."""
        # An attribute: gRPC cancels a call to which nothing refers.
        self._held = training_pb2_grpc.BlobServiceStub(self._channel).Hold(HoldRequest(), metadata=self._metadata)
        holder: Holder = first_of(self._held)
        return holder.id


def first_of(call: Any) -> Any:
    """Return the first message of a stream. A call without one is cancelled after CONNECT_TIMEOUT_S."""
    late = threading.Timer(CONNECT_TIMEOUT_S, call.cancel)  # gRPC's time limit is that of a whole call
    late.start()
    try:
        return next(call)
    finally:
        late.cancel()


class Conversation:
    """The commands and events of one job. A thread reads events, so that no signal finds the main thread in gRPC."""

    def __init__(
        self, stub: training_pb2_grpc.TrainingServiceStub, metadata: object, request: JobRequest | None = None
    ) -> None:
        self._request = request
        self._outgoing: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[Event | str | None] = queue.SimpleQueue()
        self._stream = stub.Train(iter(self._outgoing.get, None), metadata=metadata)
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, command: Command) -> None:
        """Send a command, without waiting."""
        if self._request is not None and command.HasField("setup"):
            command.setup.request.CopyFrom(self._request)
        self._outgoing.put(command)

    def events(self) -> Iterator[Event]:
        """Yield the engine's events, up to the next `interrupt`. Raises UserError when the connection breaks."""
        while (event := self._incoming.get()) is not None:
            if isinstance(event, str):  # an error that was a variable of this frame would refer to itself
                raise UserError(event)
            yield event

    def interrupt(self) -> None:
        """End `events`. A signal handler may call this: it takes no lock."""
        self._incoming.put(None)

    def close(self) -> None:
        """End the stream of commands."""
        self._outgoing.put(None)

    def cancel(self) -> None:
        """Abandon the job at once."""
        self._stream.cancel()
        self.close()

    def _read(self) -> None:
        try:
            for event in self._stream:
                self._incoming.put(event)
        except grpc.RpcError as error:
            if without_frames(error).code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                self._incoming.put(error.details())
            elif error.code() is not grpc.StatusCode.CANCELLED:
                self._incoming.put(f"the connection to the engine was lost while it trained: {error.details()}")
        self._incoming.put(None)
        self.close()  # gRPC's thread that sends would wait for the next command


def refused(
    address: str,
    error: grpc.RpcError,
    wanted: str = "an engine",
    start: str = "start one with `hfdt serve` or `nfdt serve`",
) -> UserError:
    """Return the error of a failed first call.

    Args:
        address: The address that was called.
        error: The call's error.
        wanted: What should listen at the address.
        start: How the user starts that.
    """
    code = error.code()
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return UserError(f"{address} was started with another token; set FDT_TOKEN or --token-file")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return UserError(f"{address} takes no further caller now: {error.details()}")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        details = " ".join((error.details() or "").split())
        if any(sign in details.lower() for sign in ("handshake", "ssl", "certificate", "peer name", "hostname")):
            return UserError(f"{address} has no certificate for that name of the authority in --tls-ca: {details}")
        return UserError(
            f"{wanted} does not answer at {address}; {start}. Give --tls-... if the server uses TLS, and only then"
        )
    return UserError(f"the engine at {address} has another version: {error.details()}")


@contextlib.contextmanager
def embedded(engine: "Engine") -> Iterator[TrainingClient]:
    """Start `engine` and yield a client. Members start while the script is still loading, and end with the context."""
    from fdt.service.server import serve

    token, ends = new_token(), contextlib.ExitStack()
    ends.callback(engine.stop)
    try:
        engine.start()
        with held_back():
            running = serve(engine, f"unix:{engine.blobs.directory}/engine.sock", token)
            ends.callback(running.stop)
            client = TrainingClient(running.address, token)
            ends.callback(client.close)
        yield client
    finally:
        with undisturbed():
            ends.close()


@contextlib.contextmanager
def remote(
    address: str, token: str, engine: str, request: JobRequest, identity: TlsIdentity | None = None
) -> Iterator[TrainingClient]:
    """Yield a client of the server at `address`, whose `hello.workers` are those of its jobs.

    Raises:
        UserError: The server does not answer.
        UsageError: The server is another engine's, or gives fewer workers.
    """
    with contextlib.closing(TrainingClient(address, token, identity, request)) as client:
        hello = client.hello
        if hello.engine != engine:
            raise UsageError(f"the server at {address} is {hello.engine}'s; use `{hello.engine} run`")
        if request.workers > hello.workers:
            raise UsageError(
                f"the server at {address} gives at most {quantity(hello.workers, 'worker')} to a job of yours. "
                f"Received: -np {request.workers}; leave -np out for all of them"
            )
        hello.workers = request.workers or hello.workers
        yield client


def identity(address: str, certificate: Path | None, key: Path | None, authority: Path | None) -> TlsIdentity | None:
    """Return this process's certificate for calls to `address`. Raises UsageError for invalid or missing files."""
    found = TlsIdentity.read(certificate, key, authority)
    check_safe(address, found)
    return found


def take_token(file: Path | None, flag: str = "--server") -> str:
    """Return the token that `flag` needs, from `file` or FDT_TOKEN.

    FDT_TOKEN is removed from the environment: neither the script nor its child processes need it.
    """
    given = os.environ.pop(TOKEN_VARIABLE, "").strip()
    if file is None:
        if not given:
            raise UsageError(f"{flag} needs a token: give --token-file FILE, or set {TOKEN_VARIABLE}")
        return checked(given)
    try:
        return checked(file.read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file cannot be read: {error}") from None
