"""-H and --hostfile: which hosts a run is on, and what `doctor` says of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fdt.cli.program import option

if TYPE_CHECKING:
    from fdt.launch.hosts import Host
    from fdt.launch.placement import Placement

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

HOST_FLAGS = {"hosts": "-H", "hostfile": "--hostfile"}
HOST_OPTIONS = tuple(HOST_FLAGS)


def hosts_options(function: Decorated) -> Decorated:
    """-H, --hostfile."""
    group = "Hosts"
    text = "Train on these hosts, N workers on each: host1:4,host2:4.  [default: Slurm's or Kubernetes', else this one]"
    file = click.Path(dir_okay=False, path_type=Path)
    return option(group, "-H", "--hosts", metavar="HOST:N,...", help=text)(
        option(group, "--hostfile", type=file, metavar="FILE", help="The same, a line a host: host1 slots=4.")(function)
    )


def chosen_hosts(given: Mapping[str, Any]) -> "list[Host]":
    """Those of the options, or of the scheduler that runs us; none means this machine."""
    from fdt.launch.hosts import chosen

    return chosen(given["hosts"], given["hostfile"])


def names_hosts(given: Mapping[str, Any]) -> bool:
    """Do the options or the scheduler name hosts? A --hostfile is not read: a pipe allows that once."""
    from fdt.launch.hosts import from_environment

    return bool(given["hosts"] or given["hostfile"] or from_environment())


def size_of(hosts: "Sequence[Host]", workers: int | None, default: int) -> int:
    """How many workers: as many as asked for, else one a slot, else `default`."""
    return workers or sum(host.slots for host in hosts) or default


def placement_on(hosts: "list[Host]", workers: int, servers: int = 0, *, horovod: bool = False) -> "Placement | None":
    """Where `workers` and `servers` go; None for this machine. Raises UserError unless the hosts are ready.

    `horovod`: they need the same one as this machine.
    """
    if not hosts:
        return None
    from fdt.launch.placement import HOROVOD, place

    return place(hosts, workers, servers, () if horovod else (HOROVOD,))


def report_hosts(command: str, hosts: "list[Host]") -> bool:
    """Print what `doctor` sees of the hosts; True when all are ready."""
    from fdt.doctor import report
    from fdt.launch.preflight import probe_hosts, table

    return report(f"{command} doctor: hosts", table(probe_hosts(hosts)))
