"""Joining a run: the listener that hosts and elastic workers join at, and the connection of the command `join`.

A run listens beside its engine, with a token of its own. Who joins holds a call open: the call's end is the end of the
membership, and the run's end is the end of the call.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from fdt import __version__
from fdt.errors import UserError
from fdt.rpc import join_pb2_grpc
from fdt.rpc.join_pb2 import JoinRequest, Place
from fdt.rpc.join_pb2_grpc import JoinServiceStub
from fdt.security import write_anew
from fdt.security.auth import TlsIdentity, credentials
from fdt.service.client import first_of, refused
from fdt.service.transport import bind, new_server, open_channel, stop_server, without_frames
from fdt.supervise.worker_registry import WorkerRegistry

ADDRESS_FILE, TOKEN_FILE = "join.address", "join.token"


@dataclass(frozen=True)
class JoinEndpoint:
    """Address and credentials for elastic workers.

    Attributes:
        address: Address to listen at.
        token: Token that callers must send.
        identity: TLS identity towards callers, beyond loopback.
        keep: Whether to write the token to a file.
    """

    address: str
    token: str
    identity: TlsIdentity | None = None
    keep: bool = True

    @property
    def remote(self) -> bool:
        """Whether callers may be on other hosts."""
        return self.identity is not None


@dataclass(frozen=True)
class Admission:
    """The admission of one caller.

    Attributes:
        place: What the caller must know.
        over: Set when the caller is to leave.
        release: Called once the caller has left.
    """

    place: Place
    over: threading.Event
    release: Callable[[], None]


Admit = Callable[[JoinRequest, str], Admission]  # (request, the caller's address as gRPC names it); raises ValueError


class JoinListener(join_pb2_grpc.JoinServiceServicer):
    """Listens from its creation.

    Args:
        join_endpoint: Address and credentials.
        run_dir: Directory for the files that callers need.
        admit: Admits a caller; its ValueError is the reason why not.
        engine: The engine, for messages.

    Attributes:
        address: Address for callers.
        remote: Whether callers use TLS.
        token_file: File of the token; None if the user chose the token.

    Raises:
        UserError: If the files for callers cannot be written; also the errors of `bind`.
    """

    def __init__(self, join_endpoint: JoinEndpoint, run_dir: Path, admit: Admit, engine: str) -> None:
        self._admit, self._engine = admit, engine
        self.remote = join_endpoint.remote
        server = new_server(join_endpoint.token, join_endpoint.identity)
        join_pb2_grpc.add_JoinServiceServicer_to_server(self, server)
        self.address = bind(server, join_endpoint.address, join_endpoint.identity)
        self._address_file = run_dir / ADDRESS_FILE
        self.token_file = run_dir / TOKEN_FILE if join_endpoint.keep else None
        try:
            write_anew(self._address_file, self.address)
            if self.token_file is not None:
                write_anew(self.token_file, join_endpoint.token)
        except OSError as error:  # for example a full disk
            self._forget_files()
            raise UserError(f"the files for `{engine} join` cannot be written beside the logs: {error}") from None
        server.start()
        self._server: grpc.Server | None = server

    def close(self) -> None:
        """End the waiting calls. Call it after the supervisor has ended. A second call has no effect."""
        server, self._server = self._server, None  # the server refers to its handlers, which are of this object
        if server is not None:
            stop_server(server, grace_s=1.0)
        self._forget_files()

    def _forget_files(self) -> None:
        for file in filter(None, (self._address_file, self.token_file)):
            file.unlink(missing_ok=True)

    def Join(self, request: JoinRequest, context: grpc.ServicerContext) -> Iterator[Place]:
        """Admit a caller until the call or the run ends."""
        if request.version != __version__:
            refusal = f"a worker must have the run's version, {__version__}. Received: {request.version or 'none'}"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        if request.engine != self._engine:
            refusal = f"the run is {self._engine}'s; use `{self._engine} join`. Received: {request.engine or 'none'}"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        try:
            admission = self._admit(request, context.peer())
        except ValueError as error:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        if not context.add_callback(admission.release):
            admission.release()  # the caller is gone already
            return
        yield admission.place
        admission.over.wait()


class JoinConnection:
    """A membership of `workers` workers in `engine`'s run at `address`, as long as the call lasts.

    Raises:
        UserError: The run does not admit them.
    """

    def __init__(self, address: str, token: str, identity: TlsIdentity | None, workers: int, engine: str) -> None:
        self._address, self._engine = address, engine
        self._channel = open_channel(address, identity)
        request = JoinRequest(version=__version__, workers=workers, host=socket.gethostname(), engine=engine)
        self._call: Any = JoinServiceStub(self._channel).Join(request, metadata=credentials(token))
        self.over = threading.Event()
        self._error: grpc.RpcError | None = None
        try:
            self.place = self._first()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._listen, daemon=True).start()

    def _first(self) -> Place:
        try:
            place: Place = first_of(self._call)
            return place
        except StopIteration:
            raise UserError(f"the run at {self._address} is ending") from None
        except grpc.RpcError as error:
            raise _explained(self._engine, self._address, without_frames(error)) from None

    def _listen(self) -> None:
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            self._error = without_frames(error)
        self.over.set()

    def check(self) -> None:
        """Check that the run ended normally. Raises UserError if not."""
        if self._error is not None:
            raise UserError(f"the connection to the run was lost: {_reason(self._error)}") from None

    def close(self) -> None:
        """Cancel the call."""
        self._call.cancel()
        self._channel.close()


def _explained(engine: str, address: str, error: grpc.RpcError) -> UserError:
    code = error.code()
    if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED):
        return UserError(_reason(error))
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UserError(
            f"the address must be the one that `{engine} run --join-at` printed. "
            f"Received: {address}, where another kind of server listens"
        )
    return refused(address, error, "a run that workers can join", f"start one with `{engine} run --join-at`")


def _reason(error: grpc.RpcError) -> str:
    return " ".join((error.details() or str(error.code())).split())


def admit_workers(registry: WorkerRegistry, workers: int, members: TlsIdentity | None) -> Admit:
    """Return a function that admits elastic workers to `registry`.

    Args:
        registry: Workers of the run.
        workers: Number of workers at the start.
        members: TLS identity of the run's members; None on one host.
    """

    def admit(request: JoinRequest, peer: str) -> Admission:
        ranks, group = registry.reserve(request.workers)
        identity = "" if members is None else members.dumps()
        place = Place(ranks=ranks, size=workers, addresses=registry.address, token=registry.token, identity=identity)
        return Admission(place, group, lambda: registry.release(ranks, group))

    return admit
