"""Command `nfdt join`, and the option --join-at of the commands that accept elastic workers."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fdt.cli.options import Address, CountType, tls_options, token_option
from fdt.cli.program import Command, option
from fdt.errors import UsageError

if TYPE_CHECKING:
    from nfdt.engine.rendezvous import JoinEndpoint, JoinListener

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

LOOPBACK = "127.0.0.1"
GROUP = "Workers that join"

EXAMPLES = """\b
Examples:
  nfdt run --join-at 7071 --log-dir logs train.py -np 4         a run that further workers can join
  nfdt join 127.0.0.1:7071 --token-file logs/join.token         add one, on the same host
  nfdt join 127.0.0.1:7071 --token-file logs/join.token -np 3   add three
\b
  nfdt run --join-at node1:7071 --tls-cert node1.pem --tls-key node1.key --tls-ca ca.pem train.py
  nfdt join node1:7071 --token-file join.token --tls-cert me.pem --tls-key me.key --tls-ca ca.pem
                                                                add one on another host; `nfdt certs` makes the files
"""


def join_at_option(function: Decorated) -> Decorated:
    """Add --join-at to a command."""
    text = (
        "Address at which workers can join by `nfdt join`; port 0: any free port. Other addresses than loopback need "
        "--tls-... . The token is in join.token beside the logs, or is that of FDT_TOKEN.  [default: no joining]"
    )
    return option(GROUP, "--join-at", metavar="[HOST:]PORT", help=text)(function)


def join_endpoint(given: Mapping[str, Any]) -> "JoinEndpoint | None":
    """Return the endpoint of a run's options; FDT_TOKEN is removed from the environment. Raises UsageError."""
    if given["join_at"] is None:
        return None
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # hides gRPC's messages about foreign handshakes
    from fdt.cli.connect import identity
    from fdt.security.auth import TOKEN_VARIABLE, checked, new_token
    from nfdt.engine.rendezvous import JoinEndpoint

    text = str(given["join_at"])
    address = text if ":" in text else f"{LOOPBACK}:{text}"
    if address.startswith("unix:"):
        raise UsageError(f"--join-at must be [HOST:]PORT. Received: {text}")
    ours = identity(address, given["tls_cert"], given["tls_key"], given["tls_ca"])
    chosen = checked(os.environ.pop(TOKEN_VARIABLE, "").strip())
    return JoinEndpoint(address, chosen or new_token(), ours, keep=not chosen)


def announce(reception: "JoinListener | None") -> None:
    """Print the command to join on stderr."""
    if reception is not None:
        token = f"--token-file {reception.token_file}" if reception.token_file else "with the run's token in FDT_TOKEN"
        tls = " --tls-cert ... --tls-key ... --tls-ca ..." if reception.remote else ""
        click.echo(f"nfdt: to join: nfdt join {reception.address} {token}{tls}", err=True)


@click.command("join", cls=Command, epilog=EXAMPLES)
@click.argument("address", metavar="HOST:PORT", type=Address())
@option(
    GROUP,
    "-np",
    "--num-proc",
    "workers",
    type=CountType("a number of workers"),
    default=1,
    help="Number of workers.  [default: 1]",
)
@token_option
@tls_options
def join_command(address: str, workers: int, **given: Any) -> int:
    """Add workers of this machine to a run that has --join-at.

    They get the job and the data from the run, and leave it at its end or at Ctrl-C. The other workers then get their
    batches.
    """
    from fdt.cli.connect import identity, take_token
    from fdt.cli.run import log_directory
    from nfdt.engine.rendezvous import join

    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if address.startswith("unix:"):
        raise UsageError(f"the address must be HOST:PORT, as the run printed it. Received: {address}")
    ours = identity(address, given["tls_cert"], given["tls_key"], given["tls_ca"])
    token = take_token(given["token_file"], "`nfdt join`")
    try:
        with log_directory("nfdt-join", None) as logs:
            join(address, token, ours, workers, logs.directory)
    except (KeyboardInterrupt, SystemExit):
        click.echo("nfdt: left the run; the other workers get its batches", err=True)
        return 0
    click.echo("nfdt: the run has ended", err=True)
    return 0
