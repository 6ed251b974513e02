"""The command `serve`: a pool of workers for the jobs of several clients."""

import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fdt.cli.options import SERVER, listen_options, together
from fdt.cli.program import option
from fdt.errors import UsageError
from fdt.report import quantity
from fdt.signals import undisturbed

if TYPE_CHECKING:
    from fdt.security.auth import TlsIdentity
    from frontends.pool.engines import MakeEngine

GROWTH = ("--host-discovery-script", "--min-np", "--max-np", "--elastic-timeout")


def _refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Raise UsageError for an option of runs that grow, if it is given."""
    if value is not None:
        engine, flag = context.command_path.split()[0], parameter.opts[0]
        instead = "`nfdt serve --join-at` accepts workers" if engine == "nfdt" else "`hfdt run` takes it without a pool"
        raise UsageError(f"{flag} is not for a pool, which has the slots that it starts with: {instead}")


_QUOTA = (
    "Most slots that the running jobs of each user have together, and of a user by name. A user is "
    "the common name of a certificate (--tls-ca).  [default: all slots]"
)
_ADMIN = "Users who may cancel every job and give priorities above 0.  [default: none]"
serve_options = together(
    *(option(SERVER, each, hidden=True, expose_value=False, callback=_refuse) for each in GROWTH),
    option(SERVER, "--quota", metavar="SLOTS,USER=SLOTS,...", help=_QUOTA),
    option(SERVER, "--admin", metavar="USER,...", help=_ADMIN),
    listen_options,
)


def address_of(host: str, port: int, socket: str | None) -> str:
    """Return the address to listen on. Raises UsageError for an invalid one."""
    from fdt.service.transport import check_address

    if socket is not None:
        return f"unix:{os.path.abspath(socket)}"
    address = f"[{host}]:{port}" if ":" in host.strip("[]") and "[" not in host else f"{host}:{port}"
    check_address(address)
    return address


def serve(name: str, slots: int, make_engine: "MakeEngine", given: Mapping[str, Any]) -> int:
    """Serve until Ctrl-C or SIGTERM, the intended end, with exit code 0.

    The token is FDT_TOKEN's where that is set, else a new one, in a file that only this user can read.

    Args:
        name: The engine's name.
        slots: The number of workers of the pool.
        make_engine: Makes an engine on some of the slots.
        given: The options of the command.
    """
    from fdt.cli.run import prepared
    from fdt.service.client import identity

    address = address_of(given["host"], given["port"], given["socket"])
    ours = identity(address, *(given[name] for name in ("tls_cert", "tls_key", "tls_ca")))
    users = ours is not None and bool(ours.authority)
    _check_users(given, users=users)
    private = Path(tempfile.mkdtemp(prefix=f"{name}-serve-"))
    try:
        logs = prepared(given["log_dir"]) if given["log_dir"] else private
        _serve(name, address, slots, (make_engine, logs), private / "token", given, ours)
    except (KeyboardInterrupt, SystemExit):
        click.echo(f"{name}: stopped", err=True)
    finally:
        shutil.rmtree(private, ignore_errors=True)
    return 0


def _check_users(given: Mapping[str, Any], *, users: bool) -> None:
    """Raise UsageError for options that need users who are distinguished."""
    for flag in ("quota", "admin"):
        if given[flag] and not users:
            raise UsageError(
                f"--{flag} needs users with certificates: give --tls-cert, --tls-key and --tls-ca, and no --socket. "
                f"Received: --{flag} {given[flag]}"
            )
    if given["quota"] and given.get("join_at"):
        raise UsageError("--join-at gives all workers to each job, so there is no --quota. Received: both")


def _serve(
    name: str,
    address: str,
    slots: int,
    engines: "tuple[MakeEngine, Path]",
    token_file: Path,
    given: Mapping[str, Any],
    identity: "TlsIdentity | None",
) -> None:
    from fdt.security import write_anew
    from fdt.security.auth import TOKEN_VARIABLE, checked, new_token
    from frontends.pool.engines import EnginePool
    from frontends.pool.schedule import Quotas
    from frontends.pool.service import PoolServicer

    quotas = Quotas.parse(given["quota"]) if given["quota"] else Quotas()
    administrators = [user.strip() for user in (given["admin"] or "").split(",") if user.strip()]
    chosen = checked(os.environ.pop(TOKEN_VARIABLE, "").strip())
    pool = EnginePool(slots, *engines)
    try:
        token = chosen or new_token()
        servicer = PoolServicer(name, pool, quotas, administrators, whole=bool(given.get("join_at")))
        running = servicer.listen(address, token, identity)  # first: a port in use is an error at once
        try:
            with pool.engine(slots) as engine:
                engine.start()
            if not chosen:
                write_anew(token_file, token)
            _announce(name, slots, running.address, None if chosen else token_file, pool.logs)
            threading.Event().wait()
        finally:
            with undisturbed():
                running.stop()
    finally:
        with undisturbed():
            pool.stop()


def _announce(name: str, workers: int, address: str, token_file: Path | None, logs: Path) -> None:
    """Print the address and the command for clients. `token_file`: None where the user chose the token."""
    from fdt.security.auth import TOKEN_VARIABLE

    option = f"--token-file {token_file} " if token_file else ""
    click.echo(f"{name}: {quantity(workers, 'worker')} at {address}")
    click.echo(f"{name}: token in {token_file or TOKEN_VARIABLE}, logs in {logs}")
    click.echo(f"{name}: to train on it: {name} run --server {address} {option}script.py")
