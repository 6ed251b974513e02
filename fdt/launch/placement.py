"""Where an engine's members go when its hosts are more than this machine, and how they know one another there."""

import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from fdt.errors import UserError
from fdt.launch import Launcher
from fdt.launch.hosts import Host, allot, behind, ranks
from fdt.launch.one_by_one import OneByOneLauncher
from fdt.launch.over_hosts import HostsLauncher
from fdt.launch.preflight import Probed, demand
from fdt.security.tls import TlsIdentity

HOROVOD = "Horovod"  # as the pre-flight calls it: only ranks of HFDT add up by it
MEMBER = "member.fdt"  # what every certificate of a run is for: who has one of its authority is a member
VALID = datetime.timedelta(days=90)  # longer than any run


@dataclass(frozen=True)
class Placement:
    """`found`: the hosts, ready. `identity`: what members of this run show one another."""

    found: Sequence[Probed]
    identity: TlsIdentity

    @property
    def hosts(self) -> list[Host]:
        return [one.host for one in self.found]

    def workers(self, run_dir: Path, count: int, *, singly: bool = False) -> Launcher:
        """Starts `count` workers on the first slots; `singly`: without MPI. Raises UsageError when there are fewer."""
        return self._launcher(run_dir, allot(self.hosts, count), singly)

    def servers(self, run_dir: Path, workers: int, count: int, *, singly: bool = False) -> Launcher:
        """Starts `count` servers, on the slots that the workers leave if there are any."""
        return self._launcher(run_dir, behind(self.hosts, workers, count), singly)

    def addresses(self, workers: int, count: int) -> list[str]:
        """Where those servers listen: the same ports when one is started again."""
        free = {one.host.name: list(one.ports) for one in self.found}
        try:
            return [f"{name}:{free[name].pop()}" for name in ranks(behind(self.hosts, workers, count))]
        except IndexError:
            raise UserError(f"a host can take 8 servers at most. Received: --ps {count}; give more hosts") from None

    def _launcher(self, run_dir: Path, hosts: Sequence[Host], singly: bool) -> Launcher:
        kind = OneByOneLauncher if singly else HostsLauncher
        return kind(run_dir, hosts, {one.host.name: one.route for one in self.found})


def place(hosts: Sequence[Host], workers: int, servers: int = 0, unneeded: Collection[str] = (HOROVOD,)) -> Placement:
    """Raises UserError, with a table of what failed where, unless all hosts that get something are ready.

    `unneeded`: what these need not have.
    """
    taken = {host.name for host in [*allot(hosts, workers), *behind(hosts, workers, servers)]}
    return Placement(demand([host for host in hosts if host.name in taken], unneeded), run_identity())


def run_identity() -> TlsIdentity:
    """A certificate of an authority whose key nobody has kept."""
    from fdt.security.authority import Authority

    authority = Authority("run", VALID)
    certificate, key = authority.sign([MEMBER])
    return TlsIdentity(certificate, key, authority.certificate, MEMBER)
