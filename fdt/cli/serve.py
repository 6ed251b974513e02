"""The command `serve`: an engine for one client after another."""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fdt.report import quantity
from fdt.signals import undisturbed

if TYPE_CHECKING:
    from fdt.security.auth import TlsIdentity
    from fdt.service.server import Engine

Tls = tuple[Path | None, Path | None, Path | None]


def address_of(host: str, port: int, socket: str | None) -> str:
    """Return the address to listen on. Raises UsageError for an invalid one."""
    from fdt.service.transport import check_address

    if socket is not None:
        return f"unix:{os.path.abspath(socket)}"
    address = f"[{host}]:{port}" if ":" in host.strip("[]") and "[" not in host else f"{host}:{port}"
    check_address(address)
    return address


def tls_files(given: Mapping[str, Any]) -> Tls:
    """Return the values of fdt.cli.options.tls_options."""
    return given["tls_cert"], given["tls_key"], given["tls_ca"]


def serve(
    name: str,
    address: str,
    log_dir: Path | None,
    make_engine: Callable[[Path], "Engine"],
    tls: Tls = (None, None, None),
) -> int:
    """Serve until Ctrl-C or SIGTERM, the intended end, with exit code 0.

    The token is FDT_TOKEN's where that is set, else a new one, in a file that only this user can read.

    Args:
        name: The engine's name.
        address: The address to listen on.
        log_dir: The directory of the members' logs; None: a temporary one.
        make_engine: Makes the engine, given that directory.
        tls: The files of certificate, key and authority, which an address beyond loopback needs.
    """
    from fdt.cli.connect import identity
    from fdt.cli.run import prepared

    ours = identity(address, *tls)
    private = Path(tempfile.mkdtemp(prefix=f"{name}-serve-"))
    try:
        _serve(name, address, prepared(log_dir) if log_dir else private, private / "token", make_engine, ours)
    except (KeyboardInterrupt, SystemExit):
        click.echo(f"{name}: stopped", err=True)
    finally:
        shutil.rmtree(private, ignore_errors=True)
    return 0


def _serve(
    name: str,
    address: str,
    logs: Path,
    token_file: Path,
    make_engine: Callable[[Path], "Engine"],
    identity: "TlsIdentity | None",
) -> None:
    from fdt.security.auth import TOKEN_VARIABLE, checked, new_token
    from fdt.service import server

    given = checked(os.environ.pop(TOKEN_VARIABLE, "").strip())
    engine = make_engine(logs)
    try:
        token = given or new_token()
        running = server.serve(engine, address, token, identity)  # first: a port in use is an error at once
        try:
            engine.start()
            if not given:
                _write_privately(token_file, token)
            _announce(name, engine.workers, running.address, None if given else token_file, logs)
            threading.Event().wait()
        finally:
            with undisturbed():
                running.stop()
    finally:
        with undisturbed():
            engine.stop()


def _announce(name: str, workers: int, address: str, token_file: Path | None, logs: Path) -> None:
    """Print the address and the command for clients. `token_file`: None where the user chose the token."""
    from fdt.security.auth import TOKEN_VARIABLE

    option = f"--token-file {token_file} " if token_file else ""
    click.echo(f"{name}: {quantity(workers, 'worker')} at {address}")
    click.echo(f"{name}: token in {token_file or TOKEN_VARIABLE}, logs in {logs}")
    click.echo(f"{name}: to train on it: {name} run --server {address} {option}script.py")


def _write_privately(path: Path, content: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content + "\n")
