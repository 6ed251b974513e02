"""Placement of an engine's members on the hosts of a run, and the certificate by which they trust each other."""

import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from fdt.errors import UserError
from fdt.launch import Launcher
from fdt.launch.hosts import Host, allot, behind, ranks
from fdt.launch.over_hosts import HostsLauncher, OneByOneLauncher
from fdt.launch.preflight import Probed, demand
from fdt.security.tls import TlsIdentity

HOROVOD = "Horovod"  # its name in the pre-flight check; only HFDT's ranks use it
MEMBER = "member.fdt"  # subject of every certificate that a run's authority signs
VALID = datetime.timedelta(days=90)  # longer than any run


@dataclass(frozen=True)
class Placement:
    """The hosts of a run, checked, and the certificate that its members share."""

    found: Sequence[Probed]
    identity: TlsIdentity

    @property
    def hosts(self) -> list[Host]:
        """The hosts, without the results of their checks."""
        return [one.host for one in self.found]

    def workers(self, run_dir: Path, count: int, *, singly: bool = False) -> Launcher:
        """Return a launcher of `count` workers on the first slots.

        Args:
            run_dir: The directory of the logs.
            count: The number of workers.
            singly: Start each worker by its own ssh, without MPI.

        Raises:
            UsageError: There are fewer slots.
        """
        return self._launcher(run_dir, allot(self.hosts, count), singly)

    def servers(self, run_dir: Path, workers: int, count: int, *, singly: bool = False) -> Launcher:
        """Return a launcher of `count` servers, on the slots that the workers leave free if there are any."""
        return self._launcher(run_dir, behind(self.hosts, workers, count), singly)

    def addresses(self, workers: int, count: int) -> list[str]:
        """Return the addresses where the servers listen; a restarted server keeps its port."""
        free = {one.host.name: list(one.ports) for one in self.found}
        try:
            return [f"{name}:{free[name].pop()}" for name in ranks(behind(self.hosts, workers, count))]
        except IndexError:
            raise UserError(f"a host has at most 8 servers. Received: --ps {count}; give more hosts") from None

    def _launcher(self, run_dir: Path, hosts: Sequence[Host], singly: bool) -> Launcher:
        kind = OneByOneLauncher if singly else HostsLauncher
        return kind(run_dir, hosts, {one.host.name: one.route for one in self.found})


def place(hosts: Sequence[Host], workers: int, servers: int = 0, unneeded: Collection[str] = (HOROVOD,)) -> Placement:
    """Check the hosts that get a member, and return a placement on them.

    Args:
        hosts: All hosts of the run.
        workers: The number of workers.
        servers: The number of servers.
        unneeded: Components that the hosts need not have.

    Raises:
        UserError: A host is not ready; a table of the failed checks is printed.
    """
    taken = {host.name for host in [*allot(hosts, workers), *behind(hosts, workers, servers)]}
    return Placement(demand([host for host in hosts if host.name in taken], unneeded), run_identity())


def run_identity() -> TlsIdentity:
    """Return a certificate of a new authority. The authority's key is not kept."""
    from fdt.security.authority import Authority

    authority = Authority("run", VALID)
    certificate, key = authority.sign([MEMBER])
    return TlsIdentity(certificate, key, authority.certificate, MEMBER)
