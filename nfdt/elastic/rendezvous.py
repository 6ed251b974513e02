"""Listener of a run for elastic workers: a caller with the right token gets a worker's settings and a rank."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from fdt import __version__
from fdt.errors import UserError
from fdt.security.tls import TlsIdentity
from fdt.service.transport import bind, new_server
from fdt.supervise.worker_registry import WorkerRegistry
from nfdt.rpc import join_pb2_grpc
from nfdt.rpc.join_pb2 import JoinRequest, Place

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
