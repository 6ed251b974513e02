"""Rendezvous of elastic workers: the listener of a run that they join, and the client, `nfdt join`.

They are members like all others (fdt/supervise/processes.py), with the same module and the same sessions. The settings
that a launcher would pass arrive over a separate call with a token of its own: a caller with the right token gets a
worker's settings and a rank.
"""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import grpc

from fdt import __version__, environment
from fdt.errors import UserError
from fdt.launch import LocalLauncher, LocalProcesses, Task
from fdt.security import auth
from fdt.security.auth import TOKEN_VARIABLE, TlsIdentity, credentials
from fdt.service.client import CONNECT_TIMEOUT_S, refused
from fdt.service.member import ANYWHERE, ENGINE_VARIABLE, SIZE_VARIABLE, is_our_socket, reachable_address
from fdt.service.transport import bind, new_server, open_channel
from fdt.signals import held_back, undisturbed
from fdt.supervise.outcome import tail
from fdt.supervise.worker_registry import WorkerRegistry
from nfdt.rpc import join_pb2_grpc
from nfdt.rpc.join_pb2 import JoinRequest, Place
from nfdt.rpc.join_pb2_grpc import JoinServiceStub

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


class JoinListener(join_pb2_grpc.JoinServiceServicer):
    """Listens from its creation.

    Args:
        join_endpoint: Address and credentials.
        registry: Workers of the run.
        workers: Number of workers at the start.
        members: TLS identity of the run's members; None on one host.

    Attributes:
        address: Address for callers.
        remote: Whether callers use TLS.
        token_file: File of the token; None if the user chose the token.

    Raises:
        UserError: If the files for callers cannot be written; also the errors of `bind`.
    """

    def __init__(
        self, join_endpoint: JoinEndpoint, registry: WorkerRegistry, workers: int, members: TlsIdentity | None
    ) -> None:
        self._registry, self._workers, self._members = registry, workers, members
        self.remote = join_endpoint.remote
        self._server = new_server(join_endpoint.token, join_endpoint.identity)
        join_pb2_grpc.add_JoinServiceServicer_to_server(self, self._server)
        self.address = bind(self._server, join_endpoint.address, join_endpoint.identity)
        self._address_file = registry.run_dir / ADDRESS_FILE
        self.token_file = registry.run_dir / TOKEN_FILE if join_endpoint.keep else None
        try:
            _write_anew(self._address_file, self.address)
            if self.token_file is not None:
                _write_anew(self.token_file, join_endpoint.token)
        except OSError as error:  # for example a full disk
            self._forget_files()
            raise UserError(f"the files for `nfdt join` cannot be written beside the logs: {error}") from None
        self._server.start()

    def close(self) -> None:
        """End the waiting calls. Call it after the supervisor has ended."""
        self._server.stop(grace=1.0).wait()
        self._forget_files()

    def _forget_files(self) -> None:
        for file in filter(None, (self._address_file, self.token_file)):
            file.unlink(missing_ok=True)

    def Join(self, request: JoinRequest, context: grpc.ServicerContext) -> Iterator[Place]:
        """Reserve ranks for a caller, and hold them until the call or the run ends."""
        if request.version != __version__:
            said = f"a worker must have the run's version, {__version__}. Received: {request.version or 'none'}"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, said)
        try:
            ranks, group = self._registry.reserve(request.workers)
        except ValueError as error:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        if not context.add_callback(lambda: self._registry.release(ranks, group)):
            self._registry.release(ranks, group)  # the caller is gone already
            return
        yield Place(
            ranks=ranks,
            size=self._workers,
            addresses=self._registry.address,
            token=self._registry.token,
            identity="" if self._members is None else self._members.dumps(),
        )
        group.wait()


def _write_anew(path: Path, text: str) -> None:
    """Write a new file that only its user can read, in place of an earlier run's."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")


POLL_S = 0.5
LAST_WORD_S = 15.0  # workers may end before the run's last message arrives


class JoinConnection:
    """A reservation in the run at `address`, as long as the call lasts. Raises UserError if there is none."""

    def __init__(self, address: str, token: str, identity: TlsIdentity | None, workers: int) -> None:
        self._address = address
        self._channel = open_channel(address, identity)
        request = JoinRequest(version=__version__, workers=workers, host=socket.gethostname())
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
        timer = threading.Timer(CONNECT_TIMEOUT_S, self._call.cancel)
        timer.start()
        try:
            place: Place = next(self._call)
            return place
        except StopIteration:
            raise UserError(f"the run at {self._address} is ending") from None
        except grpc.RpcError as error:
            raise _explained(self._address, error) from None
        finally:
            timer.cancel()

    def _listen(self) -> None:
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            self._error = error
        self.over.set()

    def check(self) -> None:
        """Check that the run ended normally. Raises UserError if not."""
        if self._error is not None:
            raise UserError(f"the connection to the run was lost: {_words(self._error)}") from None

    def close(self) -> None:
        """Cancel the call."""
        self._call.cancel()
        self._channel.close()


def join(address: str, token: str, identity: TlsIdentity | None, workers: int, logs: Path) -> None:
    """Train for the run at `address` until it ends. Raises UserError, and KeyboardInterrupt on a signal."""
    call = JoinConnection(address, token, identity, workers)
    processes: LocalProcesses | None = None
    try:
        ranks = list(call.place.ranks)
        with held_back():
            processes = _start(call.place, address, logs)
        names = ", ".join(f"worker {rank}" for rank in ranks)
        click.echo(f"nfdt: joined the run at {address} as {names}; Ctrl-C leaves it", err=True)
        _watch(call, processes, ranks, logs)
    finally:
        with undisturbed():
            call.close()
            if processes is not None:
                processes.stop()


def _start(place: Place, address: str, logs: Path) -> LocalProcesses:
    addresses = place.addresses.replace(f"{ANYWHERE}:", f"{address.rpartition(':')[0]}:")
    nearest = reachable_address(addresses)
    if nearest.startswith("unix:") and not is_our_socket(Path(nearest.removeprefix("unix:"))):
        raise UserError(
            "a run that listens on loopback accepts workers of the same user, host and /dev/shm only, and no socket of "
            f"this user is at {nearest}; --join-at HOST:PORT with --tls-... accepts others"
        )
    env = {
        **environment.variables(),
        ENGINE_VARIABLE: addresses,
        TOKEN_VARIABLE: place.token,
        SIZE_VARIABLE: str(place.size),
        **({auth.TLS_VARIABLE: place.identity} if place.identity else {}),
    }
    launcher = LocalLauncher(logs, lambda number: {"FDT_RANK": str(place.ranks[number])})
    return launcher.start(Task("worker", (sys.executable, "-m", "nfdt.worker.process"), len(place.ranks), env))


def _watch(call: JoinConnection, processes: LocalProcesses, ranks: list[int], logs: Path) -> None:
    """Wait until the run ends, or all workers of this process have ended."""
    told: set[int] = set()
    while not call.over.wait(POLL_S):
        ended = {end.rank: end.cause for end in processes.exits() if end.rank is not None and end.rank not in told}
        told.update(ended)
        if ended and not call.over.wait(LAST_WORD_S):
            for rank, cause in ended.items():
                click.echo(f"nfdt: worker {ranks[rank]} has ended: {cause}", err=True)
        if len(told) == len(ranks) and not call.over.is_set():
            said = " ".join(tail(logs / "worker-0.log", lines=1).split())
            raise UserError(f"all workers ended before the run: {said or 'see their logs'}")
    call.check()


def _explained(address: str, error: grpc.RpcError) -> UserError:
    code = error.code()
    if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED):
        return UserError(_words(error))
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UserError(
            "the address must be the one that `nfdt run --join-at` or `nfdt serve --join-at` printed. "
            f"Received: {address}, where another kind of server listens"
        )
    return refused(address, error, "a run that workers can join", "start one with `nfdt run --join-at`")


def _words(error: grpc.RpcError) -> str:
    return " ".join((error.details() or str(error.code())).split())
