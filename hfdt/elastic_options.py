"""The options of an elastic run, whose hosts come and go, and the engine that they choose."""

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fdt.cli.hosts import HOST_FLAGS, announce, chosen_hosts, join_at_option, join_endpoint
from fdt.cli.options import DEFAULT_WORKERS, CountType, Duration, together
from fdt.cli.program import option
from fdt.errors import UsageError

if TYPE_CHECKING:
    from fdt.launch.hosts import Host
    from hfdt.engine.engine import HfdtEngine


GROUP = "Hosts"
TIMEOUT_S = 600.0  # horovodrun's
ELASTIC_FLAGS = {
    "host_discovery_script": "--host-discovery-script",
    "max_np": "--max-np",
    "elastic_timeout": "--elastic-timeout",
    "join_at": "--join-at",
}
LIST = "--host-discovery-script or --join-at"

_SCRIPT = (
    "Executable that prints the present hosts, one line host:slots for each; it is run every second. Workers are "
    "added at the next commit, and removed when their host disappears. The run starts once there are -np slots."
)
_MOST = f"With {LIST}: the most workers.  [default: as many as there are slots]"
_TIMEOUT = f"With {LIST}: the longest wait for --min-np slots.  [default: 10m]"
elastic_options = together(
    option(
        GROUP,
        "--host-discovery-script",
        type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
        metavar="FILE",
        help=_SCRIPT,
    ),
    option(GROUP, "--max-np", type=CountType("a number of workers"), metavar="M", help=_MOST),
    option(GROUP, "--elastic-timeout", type=Duration(), metavar="10m", help=_TIMEOUT),
    join_at_option,
)


def is_elastic(given: Mapping[str, Any]) -> bool:
    """Return whether the options ask for an elastic run."""
    return bool(given["host_discovery_script"] or given["join_at"] is not None)


def check_elastic(given: Mapping[str, Any]) -> None:
    """Raise UsageError for options that an elastic run cannot have, or that only it can have."""
    if not is_elastic(given):
        for name in ("max_np", "elastic_timeout"):
            if given[name] is not None:
                raise UsageError(f"{ELASTIC_FLAGS[name]} needs {LIST}. Received: {given[name]:g} alone")
        return
    for name, spelled in HOST_FLAGS.items():
        if given[name] and given["host_discovery_script"]:
            raise UsageError(
                f"--host-discovery-script names the hosts. Received: {spelled} {given[name]} too; leave one out"
            )
    script: Path | None = given["host_discovery_script"]
    if script is not None and not os.access(script, os.X_OK):
        raise UsageError(f"--host-discovery-script must be executable: chmod +x. Received: {script}")
    rule = (given["rule"] or "allreduce").partition("(")[0]
    if rule != "allreduce":
        raise UsageError(f"{LIST} needs --algorithm allreduce. Received: --algorithm {rule}")
    if given["batch"] == "per-worker":
        raise UsageError(f"with {LIST} the script's batch is that of all workers. Received: --batch per-worker")
    least, most = _started(given, _first_hosts(given)), given["max_np"]
    if (given["min_np"] or 1) > least:
        raise UsageError(f"--min-np must be at most -np, which is {least}. Received: {given['min_np']}")
    if most is not None and most < least:
        raise UsageError(f"--max-np must be at least -np and --min-np, here {least}. Received: {most}")


def make_elastic(given: Mapping[str, Any]) -> "Callable[[Path], HfdtEngine] | None":
    """Return a function that makes the engine of an elastic run, for a directory of logs; None for another run."""
    if not is_elastic(given):
        return None
    endpoint, hosts = join_endpoint(given), _first_hosts(given)
    chosen = {name: given[name] for name in ("launcher", "comm", "bind_to") if given[name] is not None}
    started = _started(given, hosts)
    timeout_s = TIMEOUT_S if given["elastic_timeout"] is None else given["elastic_timeout"]

    def make(logs: Path) -> "HfdtEngine":
        from fdt.cli.detach import NotePrinter
        from hfdt.engine.discovery import DiscoveryScript, HostDiscovery
        from hfdt.engine.elastic import ElasticHfdtEngine
        from hfdt.engine.growing import SizeLimits
        from hfdt.engine.host_pool import HostPool
        from hfdt.engine.offers import Offers

        script, pool = given["host_discovery_script"], HostPool()
        limits = SizeLimits(given["min_np"] or started, given["max_np"] or 0, timeout_s)
        with contextlib.ExitStack() as stack:
            unneeded = ("Horovod",) if given["comm"] == "mpi" else ()
            find: Callable[[], list[Host]] = partial(list, hosts)
            if script is not None:
                find = stack.enter_context(contextlib.closing(DiscoveryScript(script))).hosts
            discovery = stack.enter_context(contextlib.closing(HostDiscovery(find, pool, unneeded)))
            discovery.start()
            if endpoint is not None:
                offers = stack.enter_context(contextlib.closing(Offers(endpoint, pool, logs)))
                if not given["quiet"]:
                    announce("hfdt", offers.listener)
            discovery.wait(started, timeout_s, NotePrinter("hfdt", given["quiet"]))
            engine = ElasticHfdtEngine(pool, limits, logs, close=stack.pop_all().close, **chosen)
        return engine

    return make


def _first_hosts(given: Mapping[str, Any]) -> "list[Host]":
    """Return the hosts of a run without a script, which others join: the named ones, else this machine."""
    from fdt.launch.hosts import Host, is_here

    if given["host_discovery_script"]:
        return []
    name = socket.gethostname()
    local = name if is_here(name) else "localhost"
    return chosen_hosts(given) or [Host(local, given["workers"] or DEFAULT_WORKERS)]


def _started(given: Mapping[str, Any], hosts: "list[Host]") -> int:
    """Return the number of slots that the start needs."""
    return given["workers"] or given["min_np"] or sum(host.slots for host in hosts) or 1
