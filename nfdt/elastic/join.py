"""Client of `nfdt join`: workers of this machine that train for a run that another user or process started."""

import socket
import sys
import threading
from pathlib import Path
from typing import Any

import click
import grpc

from fdt import __version__, environment
from fdt.cli.signals import undisturbed
from fdt.errors import UserError
from fdt.launch import Task
from fdt.launch.local import LocalLauncher, LocalProcesses
from fdt.security import tls
from fdt.security.auth import TOKEN_VARIABLE, credentials
from fdt.security.tls import TlsIdentity
from fdt.service.client import CONNECT_TIMEOUT_S, refused
from fdt.service.member import ANYWHERE, ENGINE_VARIABLE, SIZE_VARIABLE, is_our_socket, reachable_address
from fdt.service.transport import open_channel
from fdt.supervise.outcome import tail
from nfdt.rpc.join_pb2 import JoinRequest, Place
from nfdt.rpc.join_pb2_grpc import JoinServiceStub

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
        **({tls.VARIABLE: place.identity} if place.identity else {}),
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
