"""The `run` command's path for a replicated script, shared by hfdt and nfdt."""

import functools
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_shim.preemption import preemptible
from client_shim.replica.detection import detect_capture, several_optimizers, with_own_updates
from client_shim.stuck import ended_when_stuck
from fdt.cli import RunRequest, detach, flag
from fdt.cli.hosts import size_of
from fdt.cli.options import DEFAULT_WORKERS
from fdt.cli.run import run_replicas
from fdt.errors import UsageError

if TYPE_CHECKING:  # not needed by scripts that train by fit
    from client_shim.replica.rank import ReplicatedScript
    from fdt.launch.hosts import Host
    from fdt.process_group.root import RootGroup
    from fdt.report import Reporters

    StartRanks = Callable[[ReplicatedScript, Path], AbstractContextManager[RootGroup]]

WITH_SERVER = (
    "--server is for scripts that train by fit alone. A script with a training loop of its own starts its own ranks: "
    "leave --server out"
)


def wanted(
    script: str, given: Mapping[str, Any], of_fit: Sequence[str], *, several: bool = True, divides_updates: bool = False
) -> bool:
    """Return whether every rank is to run the script.

    Args:
        script: Its path.
        given: The command line's options.
        of_fit: Options that only apply where `fit` is captured.
        several: The engine trains captured models with several optimizers.
        divides_updates: The engine divides scripts that assign their weights themselves.

    Raises:
        UserError: The script trains in a way that neither capture can divide.
        UsageError: An option of `of_fit` was given for a replicated script.
    """
    chosen = given["capture"]
    if chosen in (None, "auto"):
        found = with_own_updates(detect_capture(script), divides=divides_updates)
        chosen = "replica" if not several and several_optimizers(found) else found.capture
    replica: bool = chosen == "replica"
    for name in of_fit if replica else ():
        if given[name]:
            raise UsageError(
                f"{flag(name)} is for scripts that train by fit alone. {script} has a training loop of its own, or a "
                f"model with several optimizers: leave {flag(name)} out"
            )
    return replica


def run(
    request: RunRequest,
    script_args: Sequence[str],
    seed: int | None,
    options: Mapping[str, str],
    package: str,
    hosts: "Sequence[Host]" = (),
    emulate: Path | None = None,
) -> int:
    """Run the script on all ranks.

    Args:
        request: The options of the command line.
        script_args: Arguments of the script.
        seed: The run's seed; None: a random one.
        options: Options for the ranks.
        package: The engine's package of replicated scripts, whose `make_rank` makes the rank of a process.
        hosts: Hosts of the ranks; empty: all ranks run on this host.
        emulate: Cluster file whose workers' hosts are emulated, one for each rank, instead; None: no host is.

    Returns:
        The script's exit code.

    Raises:
        UsageError: `--server` was given, or the cluster cannot be emulated.
    """
    from client_shim.replica.rank import ReplicatedScript
    from client_shim.replica.run import settle_hashing

    if request.server:
        raise UsageError(WITH_SERVER)
    if detach.due(request):
        return detach.start(request)
    settle_hashing()
    size, start_ranks = _ranks(size_of(hosts, request.workers, DEFAULT_WORKERS), hosts, emulate)
    chosen = secrets.randbits(127) if seed is None else seed  # the script's `secrets` are derived from it
    script = ReplicatedScript(request.script, script_args, chosen, options, package)
    return run_replicas(request, size, functools.partial(_as_rank_0, script, start_ranks, request.log_dir is None))


def _as_rank_0(
    script: "ReplicatedScript", start_ranks: "StartRanks", temporary: bool, run_dir: Path, reporters: "Reporters"
) -> int:
    """Start the other ranks and run the script; return its exit code. `temporary`: whether `run_dir` is."""
    from client_shim.replica import run as running

    def end(number: int) -> None:
        if temporary:
            shutil.rmtree(run_dir, ignore_errors=True)
        os._exit(128 + number)

    with preemptible(None), ended_when_stuck(end), start_ranks(script, run_dir) as process_group:
        return running.run(script, process_group, reporters)


def _ranks(asked: int, hosts: "Sequence[Host]", emulate: Path | None) -> "tuple[int, StartRanks]":
    """Return the number of ranks, and the function that starts the others where they belong."""
    from client_shim.replica import emulated_ranks, remote_ranks
    from client_shim.replica import run as running
    from fdt.launch.hosts import is_here
    from fdt.network.reading import read_emulated

    if emulate is not None:
        cluster = read_emulated(emulate)
        return len(cluster.workers), functools.partial(emulated_ranks.host, cluster=cluster)
    others = remote_ranks.ranks_by_host(hosts, asked) if hosts else []
    if all(is_here(each.name) for each in others):
        return asked, functools.partial(running.host, size=asked)
    return asked, functools.partial(remote_ranks.host, others=others)
