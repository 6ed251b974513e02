"""Command-line options of a run: an algorithm's, which `nfdt simulate` has too, the engine's, those of elastic workers.

Elastic workers join by the command `nfdt join`, which is here, too; --join-at accepts them.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fdt.cli.options import (
    FAULTS,
    Address,
    CountType,
    Duration,
    apply,
    declared_options,
    rule_names,
    tls_options,
    token_option,
)
from fdt.cli.program import Command, option
from fdt.cli.signals import ended_by_signals
from fdt.errors import UsageError
from nfdt.options import CHECKPOINT_S, DEFAULT, SYNCHRONOUS

if TYPE_CHECKING:
    from nfdt.engine.rendezvous import JoinEndpoint, JoinListener

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

ALGORITHM, TRANSPORT = "Algorithm", "Servers and transport"
RESTARTS = 3  # default with --checkpoint-every alone
RULES = Path(__file__).parent / "algorithms"
DECLARED = declared_options(RULES)


def algorithm_options(function: Decorated) -> Decorated:
    """Add --async, --sync, --rule, the options that algorithms declare, and --partition to a command."""
    add = [
        option(
            ALGORITHM,
            "--async",
            "asynchronous",
            is_flag=True,
            help="Apply each worker's gradient when it arrives (default); may also stand after the script.",
        ),
        option(
            ALGORITHM,
            "--sync",
            is_flag=True,
            help=f"The same as --rule {SYNCHRONOUS}; may also stand after the script.",
        ),
        option(
            ALGORITHM,
            "--rule",
            "--algorithm",
            "rule",
            metavar="NAME|NAME(PARAMETER=VALUE)",
            help=f"The algorithm, which applies stale gradients: {rule_names(RULES)}, or a .py file."
            f"  [default: {DEFAULT}]",
        ),
        *(declared.decorator(ALGORITHM) for declared in DECLARED),
        option(
            ALGORITHM,
            "--partition",
            type=click.Choice(["shuffle-split", "random-sampling"]),
            help="Divide an epoch's batches among workers, or draw each batch at random.  [default: shuffle-split]",
        ),
    ]
    return apply(add, function)


def checked_rule(given: dict[str, Any]) -> str | None:
    """Return the algorithm that the options choose, or None for the default of the optimizer.

    Raises:
        UsageError: If the options contradict each other, or the algorithm cannot be built.
    """
    if given["sync"] and given["asynchronous"]:
        raise UsageError("training is either synchronous or asynchronous. Received: --sync and --async")
    if given["sync"] and given["rule"] is not None:
        raise UsageError(f"--sync means --rule {SYNCHRONOUS}. Received: --rule {given['rule']} too; give one of them")
    if not given["sync"] and all(given[name] is None for name in ("rule", *(o.name for o in DECLARED))):
        return None  # imports neither algorithms nor NumPy: the script may never train
    from nfdt import algorithm_registry

    options = {declared.name: ((declared.rule,), declared.parameter) for declared in DECLARED}
    return algorithm_registry.spelled(SYNCHRONOUS if given["sync"] else given["rule"], options, given)


def server_count_option(function: Decorated) -> Decorated:
    """Add --ps to a command."""
    text = "Number of parameter servers; each has a part of the variables.  [default: 1]"
    return option(TRANSPORT, "--ps", type=CountType("a number of servers"), metavar="K", help=text)(function)


def transport_options(function: Decorated) -> Decorated:
    """Add --overlap-epochs, --channel and --overlap to a command."""
    add = [
        option(
            ALGORITHM,
            "--overlap-epochs",
            is_flag=True,
            help="Start the next epoch while the script validates; callbacks then take effect later.",
        ),
        option(
            TRANSPORT,
            "--channel",
            type=click.Choice(["auto", "shm", "grpc"]),
            help="Send tensors by shared memory or gRPC streams.  [default: auto, shared memory on one host]",
        ),
        option(
            TRANSPORT,
            "--overlap",
            type=click.Choice(["auto", "on", "off"]),
            help="Pull and push while the next gradient is computed.  [default: auto]",
        ),
    ]
    return apply(add, function)


def checkpoint_option(function: Decorated) -> Decorated:
    """Add --checkpoint-every to a command."""
    text = (
        "How often servers save their state in shared memory, to continue from it if a server is lost. 0s: a lost "
        f"server ends the run.  [default: {CHECKPOINT_S:g}s with --restarts; alone it means --restarts {RESTARTS} too]"
    )
    return option(FAULTS, "--checkpoint-every", type=Duration(), metavar="30s", help=text)(function)


def on_nan_option(function: Decorated) -> Decorated:
    """Add --on-nan to a command."""
    text = (
        "A gradient with NaN or infinity: stop ends the run and names worker and step, skip leaves it out.  "
        "[default: stop; if callbacks receive every step, it is applied, as in Keras]"
    )
    return option(FAULTS, "--on-nan", type=click.Choice(["stop", "skip"]), help=text)(function)


LOOPBACK = "127.0.0.1"
JOINING = "Workers that join"

JOIN_EXAMPLES = """\b
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
    return option(JOINING, "--join-at", metavar="[HOST:]PORT", help=text)(function)


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


@click.command("join", cls=Command, epilog=JOIN_EXAMPLES)
@click.argument("address", metavar="HOST:PORT", type=Address())
@option(
    JOINING,
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
        with ended_by_signals(), log_directory("nfdt-join", None) as logs:
            join(address, token, ours, workers, logs.directory)
    except (KeyboardInterrupt, SystemExit):
        click.echo("nfdt: left the run; the other workers get its batches", err=True)
        return 0
    click.echo("nfdt: the run has ended", err=True)
    return 0
