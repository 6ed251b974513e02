"""The options -H and --hostfile: the hosts of a run, and the report of `doctor` about them."""

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
    """Add -H and --hostfile."""
    group = "Hosts"
    text = "Hosts and their workers: host1:4,host2:4.  [default: those of Slurm or Kubernetes, else this host]"
    file = click.Path(dir_okay=False, path_type=Path)
    return option(group, "-H", "--hosts", metavar="HOST:N,...", help=text)(
        option(group, "--hostfile", type=file, metavar="FILE", help="File with one host on each line: host1 slots=4.")(
            function
        )
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
    """Return the number of workers: the requested one, else one for each slot, else `default`."""
    return workers or sum(host.slots for host in hosts) or default


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


def report_hosts(command: str, hosts: "list[Host]") -> bool:
    """Print the report of `doctor` about the hosts; return whether all are ready."""
    from fdt.doctor import report
    from fdt.launch.preflight import probe_hosts, table

    return report(f"{command} doctor: hosts", table(probe_hosts(hosts)))
