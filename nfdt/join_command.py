"""Command `nfdt join`: starts workers on this machine for a run that accepts elastic workers."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fdt.cli.hosts import join_arguments, join_credentials
from fdt.cli.program import Command
from fdt.errors import UserError

if TYPE_CHECKING:
    from fdt.launch import LocalProcesses
    from fdt.rpc.join_pb2 import Place
    from fdt.security.auth import TlsIdentity
    from fdt.supervise.joining import JoinConnection

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


@click.command("join", cls=Command, epilog=EXAMPLES)
@join_arguments
def join_command(address: str, workers: int, **given: Any) -> int:
    """Add workers of this machine to a run that has --join-at.

    They get the job and the data from the run, and leave it at its end or at Ctrl-C. The other workers then get their
    batches.
    """
    from fdt.cli.run import log_directory

    token, ours = join_credentials("nfdt", address, given)
    try:
        with log_directory("nfdt-join", None) as logs:
            join(address, token, ours, workers, logs.directory)
    except (KeyboardInterrupt, SystemExit):
        click.echo("nfdt: left the run; the other workers get its batches", err=True)
        return 0
    click.echo("nfdt: the run has ended", err=True)
    return 0


POLL_S = 0.5
LAST_WORD_S = 15.0  # workers may end before the run's last message arrives


def join(address: str, token: str, identity: "TlsIdentity | None", workers: int, logs: Path) -> None:
    """Train for the run at `address` until it ends. Raises UserError, and KeyboardInterrupt on a signal."""
    from fdt.signals import held_back, undisturbed
    from fdt.supervise.joining import JoinConnection

    call = JoinConnection(address, token, identity, workers, "nfdt")
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


def _start(place: "Place", address: str, logs: Path) -> "LocalProcesses":
    from fdt import environment
    from fdt.launch import LocalLauncher, Task
    from fdt.security import auth
    from fdt.service.member import ANYWHERE, ENGINE_VARIABLE, SIZE_VARIABLE, is_our_socket, reachable_address

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
        auth.TOKEN_VARIABLE: place.token,
        SIZE_VARIABLE: str(place.size),
        **({auth.TLS_VARIABLE: place.identity} if place.identity else {}),
    }
    launcher = LocalLauncher(logs, lambda number: {"FDT_RANK": str(place.ranks[number])})
    return launcher.start(Task("worker", (sys.executable, "-m", "nfdt.worker.process"), len(place.ranks), env))


def _watch(call: "JoinConnection", processes: "LocalProcesses", ranks: list[int], logs: Path) -> None:
    """Wait until the run ends, or all workers of this process have ended."""
    from fdt.supervise import tail

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
