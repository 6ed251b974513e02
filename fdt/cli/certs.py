"""The command `certs`: make a private authority for a cluster, a certificate for each host, and one for its users."""

import datetime
import os
import re
from collections.abc import Sequence
from pathlib import Path

import click

from fdt.cli.options import CountType
from fdt.cli.program import Command
from fdt.errors import UsageError

LOCAL = ("localhost", "127.0.0.1", "::1")
CLIENT = "client"
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9a-fA-F:]*:[0-9a-fA-F:]*")


@click.command("certs", cls=Command)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.argument("hosts", nargs=-1, metavar="HOST...")
@click.option(
    "--days",
    type=CountType("a number of days"),
    default=365,
    help="Days for which the certificates are valid.  [default: 365]",
)
def certs_command(directory: Path, hosts: Sequence[str], days: int) -> None:
    """Make TLS certificates for a cluster.

    DIRECTORY gets a private authority (ca.pem, ca.key), a certificate for each HOST, and one for users (client.pem).

    HOST is a name or an IP address, as users give it to --server. Copy its two files and ca.pem to each host. Give
    users client.pem, client.key and ca.pem. Keep ca.key private.
    """
    for host in hosts:
        if host in ("ca", CLIENT) or not HOST.fullmatch(host) or hosts.count(host) > 1:
            raise UsageError(f"each host must be a name or an IP address, given once. Received: {host!r}")
    make(directory, hosts, datetime.timedelta(days=days))
    server = hosts[0] if hosts else "HOST"
    name = click.get_current_context().find_root().info_name
    click.echo(f"{name}: made {', '.join(('ca', CLIENT, *hosts))} in {directory}, valid for {days} days")
    files = "--tls-cert {0}/{1}.pem --tls-key {0}/{1}.key --tls-ca {0}/ca.pem"
    if hosts:
        click.echo(f"{name}: on {server}: {name} serve --host {server} {files.format(directory, server)}")
        click.echo(f"{name}: users: {name} run --server {server}:PORT {files.format(directory, CLIENT)} script.py")


def make(directory: Path, hosts: Sequence[str], valid: datetime.timedelta) -> None:
    """Make the files. Raises UsageError where a file exists already, as no authority is overwritten."""
    from fdt.security.authority import Authority

    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority("hfdt/nfdt private authority", valid)
        _write(directory / "ca", authority.certificate, authority.key)
        _write(directory / CLIENT, *authority.sign([CLIENT]))
        for host in hosts:
            _write(directory / host, *authority.sign([host, *LOCAL]))
    except FileExistsError as error:
        raise UsageError(
            f"certs needs a directory without certificates. Received: {error.filename}, which exists"
        ) from None
    except OSError as error:
        raise UsageError(f"certs cannot write its files: {error}") from None


def _write(stem: Path, certificate: str, key: str) -> None:
    """Write STEM.key, readable to this user alone, and STEM.pem."""
    for suffix, text, mode in ((".key", key, 0o600), (".pem", certificate, 0o644)):
        descriptor = os.open(f"{stem}{suffix}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
