"""The options of an elastic run, whose hosts come and go, and the engine that they choose."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fdt.cli.hosts import HOST_FLAGS
from fdt.cli.options import CountType, Duration, apply
from fdt.cli.program import option
from fdt.errors import UsageError

if TYPE_CHECKING:
    from hfdt.engine.engine import HfdtEngine

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

GROUP = "Hosts"
TIMEOUT_S = 600.0  # horovodrun's
ELASTIC_FLAGS = {
    "host_discovery_script": "--host-discovery-script",
    "max_np": "--max-np",
    "elastic_timeout": "--elastic-timeout",
}


def elastic_options(function: Decorated) -> Decorated:
    """Add --host-discovery-script, --max-np and --elastic-timeout."""
    script = (
        "Executable that prints the hosts that there are now, a line host:slots for each; it is run every second. "
        "Workers are added at the next commit, and removed when their host goes. -np: the slots that the start needs."
    )
    most = "With --host-discovery-script: the most workers.  [default: as many as there are slots]"
    timeout = "With --host-discovery-script: the longest wait for --min-np slots.  [default: 10m]"
    add = [
        option(
            GROUP,
            "--host-discovery-script",
            type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
            metavar="FILE",
            help=script,
        ),
        option(GROUP, "--max-np", type=CountType("a number of workers"), metavar="M", help=most),
        option(GROUP, "--elastic-timeout", type=Duration(), metavar="10m", help=timeout),
    ]
    return apply(add, function)


def is_elastic(given: Mapping[str, Any]) -> bool:
    """Return whether the options ask for an elastic run."""
    return bool(given["host_discovery_script"])


def check_elastic(given: Mapping[str, Any]) -> None:
    """Raise UsageError for options that an elastic run cannot have, or that only it can have."""
    if not is_elastic(given):
        for name in ("max_np", "elastic_timeout"):
            if given[name] is not None:
                raise UsageError(
                    f"{ELASTIC_FLAGS[name]} needs --host-discovery-script. Received: {given[name]:g} alone"
                )
        return
    for name, spelled in HOST_FLAGS.items():
        if given[name]:
            raise UsageError(f"--host-discovery-script prints the hosts itself. Received: {spelled} {given[name]} too")
    script: Path = given["host_discovery_script"]
    if not os.access(script, os.X_OK):
        raise UsageError(f"--host-discovery-script must be executable: chmod +x. Received: {script}")
    rule = (given["rule"] or "allreduce").partition("(")[0]
    if rule != "allreduce":
        raise UsageError(f"--host-discovery-script needs --algorithm allreduce. Received: --algorithm {rule}")
    if given["batch"] == "per-worker":
        raise UsageError(
            "--host-discovery-script keeps the batch of all workers together as it is. Received: --batch per-worker"
        )
    least, most = given["workers"] or given["min_np"] or 1, given["max_np"]
    if (given["min_np"] or 1) > least:
        raise UsageError(f"--min-np must be at most -np, which is {least}. Received: {given['min_np']}")
    if most is not None and most < least:
        raise UsageError(f"--max-np must be -np and --min-np or more, which is {least}. Received: {most}")


def make_elastic(given: Mapping[str, Any]) -> "Callable[[Path], HfdtEngine] | None":
    """Return a function that makes the engine of an elastic run, for a directory of logs; None for another run."""
    if not is_elastic(given):
        return None
    chosen = {name: given[name] for name in ("launcher", "comm", "bind_to") if given[name] is not None}

    def make(logs: Path) -> "HfdtEngine":
        from hfdt.engine.discovery import HostDiscovery, run_script
        from hfdt.engine.elastic import ElasticHfdtEngine
        from hfdt.engine.growing import SizeLimits
        from hfdt.engine.host_pool import HostPool

        started = given["workers"] or given["min_np"] or 1
        timeout_s = TIMEOUT_S if given["elastic_timeout"] is None else given["elastic_timeout"]
        limits = SizeLimits(given["min_np"] or started, given["max_np"] or 0, timeout_s)
        pool, script = HostPool(), given["host_discovery_script"]
        unneeded = ("Horovod",) if given["comm"] == "mpi" else ()
        discovery = HostDiscovery(lambda: run_script(script), pool, unneeded)
        try:
            discovery.start()
            discovery.wait(started, timeout_s, lambda text: _say(given, text))
            return ElasticHfdtEngine(pool, limits, logs, close=discovery.close, **chosen)
        except BaseException:
            discovery.close()
            raise

    return make


def _say(given: Mapping[str, Any], text: str) -> None:
    if not given["quiet"]:
        click.echo(f"hfdt: {text}", err=True)
