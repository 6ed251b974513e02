"""Connections of a client to an engine, which runs in this process during the run, or at a server."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fdt.errors import UsageError
from fdt.report import quantity
from fdt.rpc.session_pb2 import JobRequest
from fdt.security.auth import TOKEN_VARIABLE, TlsIdentity, checked, new_token
from fdt.service.client import TrainingClient
from fdt.service.server import Engine, serve
from fdt.service.transport import check_safe
from fdt.signals import held_back, undisturbed


@contextlib.contextmanager
def embedded(engine: Engine) -> Iterator[TrainingClient]:
    """Start `engine` and yield a client. Members start while the script is still loading, and end with the context."""
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


def take_token(file: Path | None, who: str = "--server") -> str:
    """Return the token that `who` needs, from `file` or FDT_TOKEN.

    FDT_TOKEN is removed from the environment: neither the script nor its child processes need it.
    """
    given = os.environ.pop(TOKEN_VARIABLE, "").strip()
    if file is None:
        if not given:
            raise UsageError(f"{who} needs a token: give --token-file FILE, or set {TOKEN_VARIABLE}")
        return checked(given)
    try:
        return checked(file.read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file cannot be read: {error}") from None
