"""A client of an engine: one that lives in this process as long as the run, or a server's."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fdt.cli.signals import held_back, undisturbed
from fdt.errors import UsageError
from fdt.security.auth import TOKEN_VARIABLE, checked, new_token
from fdt.security.tls import TlsIdentity
from fdt.service.client import TrainingClient
from fdt.service.engine import Engine
from fdt.service.server import serve
from fdt.service.transport import check_safe


@contextlib.contextmanager
def embedded(engine: Engine) -> Iterator[TrainingClient]:
    """Start `engine`; its members come up while the script still loads. They are gone when the context ends."""
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
    address: str, token: str, engine: str, workers: int | None, identity: TlsIdentity | None = None
) -> Iterator[TrainingClient]:
    """A client of the server at `address`. Raises UserError when it is not `engine`'s, or has not `workers` workers."""
    with contextlib.closing(TrainingClient(address, token, identity)) as client:
        hello = client.hello
        if hello.engine != engine:
            raise UsageError(f"the server must be {engine}'s; use `{hello.engine} run`. Received: {address}")
        if workers not in (None, hello.workers):
            raise UsageError(
                f"the server at {address} has {hello.workers} workers: leave -np out, or give it to "
                f"`{engine} serve`. Received: -np {workers}"
            )
        yield client


def identity(address: str, certificate: Path | None, key: Path | None, authority: Path | None) -> TlsIdentity | None:
    """Who we are to the other side of `address`. Raises UsageError for files that cannot be, or that are missing."""
    found = TlsIdentity.read(certificate, key, authority)
    check_safe(address, found)
    return found


def take_token(file: Path | None, who: str = "--server") -> str:
    """The token that `who` needs. FDT_TOKEN leaves the environment: neither the script nor its children need it."""
    given = os.environ.pop(TOKEN_VARIABLE, "").strip()
    if file is None:
        if not given:
            raise UsageError(f"{who} needs a token: --token-file FILE, or {TOKEN_VARIABLE} set. Received: neither")
        return checked(given)
    try:
        return checked(file.read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file must be a file that can be read. Received: {error}") from None
