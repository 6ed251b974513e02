"""The launchers of HFDT's ranks: mpirun, or, without any MPI, plain processes with a Gloo rendezvous."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdt.errors import UserError
from fdt.launch import GRACE_S, Exit, Launcher, LocalLauncher, LocalProcesses, Task
from fdt.launch.mpirun import MpirunLauncher, find_mpirun
from hfdt.engine.rendezvous import LOOPBACK, gloo_variables, start_rendezvous


def choose_launcher(name: str, run_dir: Path, workers: int) -> Launcher:
    """Return the launcher of a name.

    Args:
        name: "mpi", "gloo" or "auto", which is mpi where there is an mpirun and more than one rank. With "auto" a
            single rank is a plain process.
        run_dir: The directory of logs.
        workers: The number of ranks.

    Raises:
        UserError: The name is unknown.
    """
    if name not in ("auto", "mpi", "gloo"):
        raise UserError(f"--launcher must be auto, mpi or gloo. Received: {name!r}")
    if workers == 1 and name == "auto":
        return LocalLauncher(run_dir)
    if name == "mpi" or (name == "auto" and find_mpirun()):
        return MpirunLauncher(run_dir)
    return GlooLauncher(run_dir)


class GlooLauncher:
    """A launcher of plain processes that find each other through Horovod's rendezvous server."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def start(self, task: Task) -> "GlooProcesses":
        """Start the rendezvous server and the ranks. Raises UserError where Horovod is not installed."""
        rendezvous = start_rendezvous(f"localhost:{task.count}", task.count)
        network = LOOPBACK, rendezvous.server_address[1], "lo"

        def env(rank: int) -> Mapping[str, str]:
            return gloo_variables(rank, task.count, task.count, "localhost", network)

        return GlooProcesses(LocalLauncher(self._run_dir, env).start(task), rendezvous)


class GlooProcesses:
    """The launched ranks with their rendezvous server."""

    def __init__(self, ranks: LocalProcesses, rendezvous: Any) -> None:
        self._ranks, self._rendezvous = ranks, rendezvous

    def exits(self) -> list[Exit]:
        return self._ranks.exits()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End the ranks within `grace_s` seconds, and the rendezvous server."""
        self._ranks.stop(grace_s)
        self._rendezvous.shutdown()
        self._rendezvous.server_close()
