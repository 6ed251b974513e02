"""The client's side of TrainingService."""

import queue
import threading
from collections.abc import Iterator

import grpc

from fdt import __version__
from fdt.blobs import Blobs
from fdt.errors import UserError
from fdt.rpc import training_pb2_grpc
from fdt.rpc.session_pb2 import Command, Event, JobRequest
from fdt.rpc.training_pb2 import HelloReply, HelloRequest
from fdt.security.auth import TlsIdentity, credentials
from fdt.service.blobs import reachable_blobs
from fdt.service.transport import open_channel

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
        self.hello = self._say_hello(address)
        self.blobs: Blobs = reachable_blobs(self.hello, self._channel, self._metadata)

    def train(self) -> "Conversation":
        """Begin a job."""
        return Conversation(self._stub, self._metadata, self._request)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _say_hello(self, address: str) -> HelloReply:
        request = HelloRequest(version=__version__)
        try:
            reply: HelloReply = self._stub.Hello(request, metadata=self._metadata, timeout=CONNECT_TIMEOUT_S)
            return reply
        except grpc.RpcError as error:
            self.close()
            raise refused(address, error) from None


class Conversation:
    """The commands and events of one job. A thread reads events, so that no signal finds the main thread in gRPC."""

    def __init__(
        self, stub: training_pb2_grpc.TrainingServiceStub, metadata: object, request: JobRequest | None = None
    ) -> None:
        self._request = request
        self._outgoing: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[Event | UserError | None] = queue.SimpleQueue()
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
            if isinstance(event, UserError):
                raise event
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
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                self._incoming.put(UserError(error.details()))
            elif error.code() is not grpc.StatusCode.CANCELLED:
                said = f"the connection to the engine was lost while it trained: {error.details()}"
                self._incoming.put(UserError(said))
        self._incoming.put(None)


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
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        said = " ".join((error.details() or "").split())
        if any(word in said.lower() for word in ("handshake", "ssl", "certificate", "peer name", "hostname")):
            return UserError(f"{address} has no certificate for that name of the authority in --tls-ca: {said}")
        return UserError(
            f"{wanted} does not answer at {address}; {start}. Give --tls-... if the server uses TLS, and only then"
        )
    return UserError(f"the engine at {address} has another version: {error.details()}")
