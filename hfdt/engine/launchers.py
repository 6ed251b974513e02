"""The launchers of HFDT's ranks: mpirun, or, without any MPI, plain processes with a Gloo rendezvous."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fdt.errors import UserError
from fdt.launch import Exit, Launcher, LocalLauncher, LocalProcesses, Task
from fdt.launch.mpirun import MpirunLauncher, find_mpirun
from hfdt.engine import hosts_mpirun, local_mpirun
from hfdt.engine.rendezvous import LOOPBACK, gloo_variables, start_rendezvous

FILTER_PORTS = "HFDT_FILTER_PORTS"  # "1": mpirun over hosts gets filters
OPEN_MPI = 5
_STARTS_DAEMONS = re.compile(r"^SLURM_JOB_ID$|_MCA_plm$|_MCA_(plm|pls|prte)_[rs]sh_(agent|args)$")


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
        return MpirunLauncher(run_dir, wrapper=(sys.executable, "-I", "-S", local_mpirun.__file__))
    return GlooLauncher(run_dir)


def wrapper_over_hosts(hosts: int) -> Sequence[str]:
    """Return the command that runs mpirun over hosts with filters at its ports; () where the user does not ask for it.

    It knows Open MPI 5, whose daemons are PRRTE's, ssh, and addresses that all hosts see alike.

    Args:
        hosts: The number of hosts.

    Raises:
        UserError: The filters are asked for, and cannot be had.
    """
    if os.environ.get(FILTER_PORTS, "0") in ("", "0"):
        return ()
    taken = next(filter(_STARTS_DAEMONS.search, os.environ), None)
    own = (sys.executable, "-I", "-S", hosts_mpirun.__file__)
    mpirun, shown = find_mpirun(), ""
    if mpirun is not None:
        shown = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"Open MPI\D+(\d+)", shown)
    if taken is not None:
        obstacle = f"ssh without settings of its own, and {taken} is set"
    elif version is None or int(version[1]) != OPEN_MPI:
        obstacle = f"Open MPI {OPEN_MPI}. Received: {shown.partition(chr(10))[0] or 'no mpirun'}"
    elif any(set(" :") & set(name) for name in own):
        obstacle = f"paths without spaces and colons. Received: {' '.join(own)}"
    elif hosts > hosts_mpirun.MOST_HOSTS:
        obstacle = f"at most {hosts_mpirun.MOST_HOSTS} hosts. Received: {hosts}"
    else:
        return own
    raise UserError(f"{FILTER_PORTS}=1 needs {obstacle}")


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
        """Return the ranks that have ended."""
        return self._ranks.exits()

    def stop(self, grace_s: float = 2.0) -> None:
        """End the ranks within `grace_s` seconds, and the rendezvous server."""
        self._ranks.stop(grace_s)
        self._rendezvous.shutdown()
        self._rendezvous.server_close()
