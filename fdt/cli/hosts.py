"""Hosts of a cluster: the options -H, --hostfile and --join-at, the report of `doctor`, and the command `certs`.

`certs` makes a private authority for a cluster, a certificate for each host, and one for its users.
"""

import datetime
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fdt import rpc
from fdt.cli.options import DIRECTORY, FILE, Address, CountType, tls_options, together, token_option
from fdt.cli.program import Command, option
from fdt.errors import UsageError

if TYPE_CHECKING:
    from fdt.launch.hosts import Host
    from fdt.launch.placement import Placement
    from fdt.security.auth import TlsIdentity
    from fdt.supervise.joining import JoinEndpoint, JoinListener

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

HOST_FLAGS = {"hosts": "-H", "hostfile": "--hostfile"}
HOST_OPTIONS = tuple(HOST_FLAGS)


_HOSTS = "Hosts and their workers: host1:4,host2:4.  [default: those of Slurm or Kubernetes, else this host]"
hosts_options = together(
    option("Hosts", "-H", "--hosts", metavar="HOST:N,...", help=_HOSTS),
    option("Hosts", "--hostfile", type=FILE, metavar="FILE", help="File with one host on each line: host1 slots=4."),
)


def chosen_hosts(given: Mapping[str, Any]) -> "list[Host]":
    """Return the hosts of the options or of the scheduler; none means this machine."""
    from fdt.launch.hosts import chosen

    return chosen(given["hosts"], given["hostfile"])


def names_hosts(given: Mapping[str, Any]) -> bool:
    """Return whether the options or the scheduler name hosts. No --hostfile is read: a pipe can be read only once."""
    from fdt.launch.hosts import from_environment

    return bool(given["hosts"] or given["hostfile"] or from_environment())


def size_of(hosts: "Sequence[Host]", workers: int | None, default: int) -> int:
    """Return the number of workers: the requested one, else one for each slot, else `default`.

    A job of the scheduler that is on this machine alone has slots, too: its tasks, where it asked for several.
    """
    from fdt.launch.hosts import from_environment

    if workers or hosts:
        return workers or sum(host.slots for host in hosts)
    tasks = sum(host.slots for host in from_environment())
    return tasks if tasks > 1 else default


def placement_on(hosts: "list[Host]", workers: int, servers: int = 0, *, horovod: bool = False) -> "Placement | None":
    """Return the placement of workers and servers on hosts; None for this machine.

    Args:
        hosts: The hosts, or none.
        workers: The number of workers.
        servers: The number of servers.
        horovod: Whether the hosts need the same version of Horovod as this machine.

    Raises:
        UserError: A host is not ready.
    """
    if not hosts:
        return None
    from fdt.launch.placement import HOROVOD, place

    return place(hosts, workers, servers, () if horovod else (HOROVOD,))


def report_hosts(command: str, hosts: "list[Host]", *, as_json: bool = False) -> bool:
    """Print the report of `doctor` about the hosts; return whether all are ready."""
    from fdt.doctor import report
    from fdt.launch.placement import probe_hosts, table

    return report(f"{command} doctor: hosts", table(probe_hosts(hosts)), as_json=as_json)


LOCAL = ("localhost", "127.0.0.1", "::1")
CLIENT = "client"
DAYS = "Days for which the certificates are valid.  [default: 365]"
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9a-fA-F:]*:[0-9a-fA-F:]*")


@click.command("certs", cls=Command)
@click.argument("directory", type=DIRECTORY)
@click.argument("hosts", nargs=-1, metavar="HOST...")
@click.option("--days", type=CountType("a number of days"), default=365, help=DAYS)
@click.option("--user", "users", multiple=True, metavar="USER", help="Make a certificate of this user, too.")
def certs_command(directory: Path, hosts: Sequence[str], days: int, users: Sequence[str]) -> None:
    """Make TLS certificates for a cluster.

    DIRECTORY gets a private authority (ca.pem, ca.key), a certificate for each HOST, and one for users (client.pem).

    HOST is a name or an IP address, as users give it to --server. Copy its two files and ca.pem to each host. Give
    users client.pem, client.key and ca.pem. Keep ca.key private.

    A server distinguishes users who have certificates of their own (--user). Without a HOST, --user adds users to the
    authority in DIRECTORY.
    """
    for host in hosts:
        if host in ("ca", CLIENT) or not HOST.fullmatch(host) or hosts.count(host) > 1:
            raise UsageError(f"each host must be a name or an IP address, given once. Received: {host!r}")
    for user in users:
        if user in ("ca", CLIENT, *hosts) or not USER.fullmatch(user) or users.count(user) > 1:
            raise UsageError(f"each user must have a name of letters and digits, given once. Received: {user!r}")
    valid, made = datetime.timedelta(days=days), ("ca", CLIENT, *hosts, *users)
    if users and not hosts and (directory / "ca.key").exists():
        add_users(directory, users, valid)
        made = tuple(users)
    else:
        make(directory, hosts, valid, users)
    name = click.get_current_context().find_root().info_name
    click.echo(f"{name}: made {', '.join(made)} in {directory}, valid for {days} days")
    if hosts:
        server, files = hosts[0], "--tls-cert {0}/{1}.pem --tls-key {0}/{1}.key --tls-ca {0}/ca.pem"
        click.echo(f"{name}: on {server}: {name} serve --host {server} {files.format(directory, server)}")
        click.echo(f"{name}: users: {name} run --server {server}:PORT {files.format(directory, CLIENT)} script.py")


def make(directory: Path, hosts: Sequence[str], valid: datetime.timedelta, users: Sequence[str] = ()) -> None:
    """Write a new authority, and certificates of hosts and users. Raises UsageError if one of the files exists."""
    from fdt.security.authority import Authority

    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority("hfdt/nfdt private authority", valid)
        _write(directory / "ca", authority.certificate, authority.key)
        _write(directory / CLIENT, *authority.sign([CLIENT]))
        for host in hosts:
            _write(directory / host, *authority.sign([host, *LOCAL]))
        for user in users:
            _write(directory / user, *authority.sign_user(user))
    except FileExistsError as error:
        raise UsageError(
            f"certs needs a directory without certificates. Received: {error.filename}, which exists"
        ) from None
    except OSError as error:
        raise UsageError(f"certs cannot write its files: {error}") from None


def add_users(directory: Path, users: Sequence[str], valid: datetime.timedelta) -> None:
    """Make certificates of users by the authority in `directory`. Raises UsageError where one exists already."""
    from fdt.security.authority import Authority

    taken = [user for user in users if (directory / f"{user}.pem").exists()]
    if taken:
        raise UsageError(f"certs overwrites no certificate. Received: {directory / taken[0]}.pem, which exists")
    try:
        authority = Authority.load((directory / "ca.pem").read_text(), (directory / "ca.key").read_text(), valid)
        for user in users:
            _write(directory / user, *authority.sign_user(user))
    except (OSError, ValueError) as error:
        raise UsageError(f"certs needs the authority's ca.pem and ca.key in {directory}: {error}") from None


def _write(stem: Path, certificate: str, key: str) -> None:
    """Write STEM.key, readable to this user alone, and STEM.pem."""
    for suffix, text, mode in ((".key", key, 0o600), (".pem", certificate, 0o644)):
        descriptor = os.open(f"{stem}{suffix}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)


def emulate_option(group: str, emulated: str) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds --emulate, in `group`, to a command. `emulated`: what is emulated, for the help."""
    text = f"Run each worker on an emulated host, with the file's {emulated} (docs/cluster.md); needs root."
    return option(group, "--emulate", type=FILE, metavar="CLUSTER.YAML", help=text)


def check_emulated(given: dict[str, Any], flags: Mapping[str, str]) -> None:
    """Raise UsageError where one of the options in `flags` (name -> spelling) stands beside --emulate."""
    for name, spelled in flags.items() if given["emulate"] is not None else ():
        if given[name]:
            raise UsageError(f"--emulate takes the workers from its file. Received: {spelled} {given[name]} too")


JOIN_GROUP = "Workers that join"
LOOPBACK = "127.0.0.1"

_JOIN_AT = (
    "Address at which workers can join by `join`; port 0: any free port. An address other than loopback needs "
    "--tls-cert, --tls-key and --tls-ca. The token is in join.token beside the logs, or is that of FDT_TOKEN.  "
    "[default: no joining]"
)
join_at_option = option(JOIN_GROUP, "--join-at", metavar="[HOST:]PORT", help=_JOIN_AT)


def join_endpoint(given: Mapping[str, Any]) -> "JoinEndpoint | None":
    """Return the endpoint of a run's options; FDT_TOKEN is removed from the environment. Raises UsageError."""
    if given["join_at"] is None:
        return None
    rpc.set_up()  # without its messages about foreign handshakes
    from fdt.security.auth import TOKEN_VARIABLE, checked, new_token
    from fdt.service.client import identity
    from fdt.supervise.joining import JoinEndpoint

    text = str(given["join_at"])
    address = text if ":" in text else f"{LOOPBACK}:{text}"
    if address.startswith("unix:"):
        raise UsageError(f"--join-at must be [HOST:]PORT. Received: {text}")
    ours = identity(address, given["tls_cert"], given["tls_key"], given["tls_ca"])
    chosen = checked(os.environ.pop(TOKEN_VARIABLE, "").strip())
    return JoinEndpoint(address, chosen or new_token(), ours, keep=not chosen)


_NUM_PROC = "Number of workers that this machine adds.  [default: 1]"
join_arguments = together(
    click.argument("address", metavar="HOST:PORT", type=Address()),
    option(
        JOIN_GROUP, "-np", "--num-proc", "workers", type=CountType("a number of workers"), default=1, help=_NUM_PROC
    ),
    token_option,
    tls_options,
)


def announce(engine: str, listener: "JoinListener | None") -> None:
    """Print the command to join on stderr."""
    if listener is not None:
        token = f"--token-file {listener.token_file}" if listener.token_file else "with the run's token in FDT_TOKEN"
        tls = " --tls-cert ... --tls-key ... --tls-ca ..." if listener.remote else ""
        click.echo(f"{engine}: to join: {engine} join {listener.address} {token}{tls}", err=True)


def join_credentials(engine: str, address: str, given: Mapping[str, Any]) -> "tuple[str, TlsIdentity | None]":
    """Return the token and the certificate of the command `join` for the run at `address`. Raises UsageError."""
    from fdt.service.client import identity, take_token

    rpc.set_up()
    if address.startswith("unix:"):
        raise UsageError(f"the address must be HOST:PORT, as the run printed it. Received: {address}")
    ours = identity(address, given["tls_cert"], given["tls_key"], given["tls_ca"])
    return take_token(given["token_file"], f"`{engine} join`"), ours
