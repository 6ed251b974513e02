"""The `run` command's path for a replicated script, shared by hfdt and nfdt."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_shim.replica.detection import detect_capture, several_optimizers, with_own_updates
from fdt.cli import RunRequest, detach, flag
from fdt.cli.hosts import size_of
from fdt.cli.options import DEFAULT_WORKERS
from fdt.cli.run import run_replicas
from fdt.errors import UsageError

if TYPE_CHECKING:  # not needed by scripts that train by fit
    from fdt.launch.hosts import Host
    from fdt.process_group.root import RootGroup
    from fdt.report import Reporters


def wanted(
    script: str, given: Mapping[str, Any], of_fit: Sequence[str], *, several: bool = True, by_hand: bool = False
) -> bool:
    """Return whether every rank is to run the script.

    Args:
        script: Its path.
        given: The command line's options.
        of_fit: Options that only apply where `fit` is captured.
        several: The engine trains captured models with several optimizers.
        by_hand: The engine divides scripts that assign their weights themselves.

    Raises:
        UserError: The script trains in a way that neither capture can divide.
        UsageError: An option of `of_fit` was given for a replicated script.
    """
    chosen = given["capture"]
    if chosen in (None, "auto"):
        found = with_own_updates(detect_capture(script), by_hand=by_hand)
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
    script: str,
    words: Sequence[str],
    seed: int | None,
    options: Mapping[str, str],
    package: str,
    hosts: "Sequence[Host]" = (),
    emulate: Path | None = None,
) -> int:
    """Run the script on all ranks.

    Args:
        request: The options of the command line.
        script: Path of the user's Python file.
        words: Arguments of the script.
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
    from client_shim.replica import emulated_ranks, remote_ranks
    from client_shim.replica import run as running
    from fdt.launch.hosts import is_here
    from fdt.network.reading import read_emulated

    if request.server:
        raise UsageError(
            "--server is for scripts that train by fit alone. A script with a training loop of its own starts its own "
            "ranks: leave --server out"
        )
    if detach.due(request):
        return detach.start(request)
    running.settle_hashing()
    cluster = read_emulated(emulate) if emulate is not None else None
    size = len(cluster.workers) if cluster else size_of(hosts, request.workers, DEFAULT_WORKERS)
    others = remote_ranks.ranks_by_host(hosts, size) if hosts else []

    def ranks(run_dir: Path) -> "AbstractContextManager[tuple[RootGroup, int]]":
        if cluster:
            return emulated_ranks.host(package, script, words, cluster, run_dir, seed, options)
        if all(is_here(each.name) for each in others):
            return running.host(package, script, words, size, run_dir, seed, options)
        return remote_ranks.host(package, script, words, others, run_dir, seed, options)

    def as_rank_0(run_dir: Path, reporters: "Reporters") -> int:
        with ranks(run_dir) as (process_group, chosen):
            return running.run(script, words, process_group, chosen, package, options, reporters)

    return run_replicas(request, size, as_rank_0)
