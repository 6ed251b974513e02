"""NFDT's engines: they start servers and workers, which stay alive between jobs, and handle their events.

One engine is that of `nfdt run`, one that of `nfdt simulate`, and one that of `nfdt run --emulate`.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.errors import UsageError
from fdt.launch import Launcher, LocalLauncher, Task
from fdt.launch.placement import Placement, run_identity
from fdt.rpc.session_pb2 import Command, Event
from fdt.service.member import ANYWHERE
from fdt.service.transport import EMULATED_VARIABLE, free_ports
from fdt.supervise.joining import JoinEndpoint, JoinListener, admit_workers
from fdt.supervise.processes import MOST
from fdt.supervise.supervisor import Supervisor
from nfdt.engine.coordinator import ServersCoordinator

HOSTED = "nfdt.server.local:LocalServer"  # the server of a single worker, in its process
CLUSTER_VARIABLE = "FDT_CLUSTER"  # of a simulation: path of the cluster file; not set: equal nodes
WORKERS_VARIABLE = "FDT_SIMULATED_WORKERS"
EMULATED_PORT = 7077  # of the server on an emulated host


class NfdtEngine:
    """Starts workers and parameter servers, and runs jobs on them.

    Args:
        workers: Number of workers.
        run_dir: Directory of the run.
        ps: Number of parameter servers, among which the variables are divided.
        apart: Whether members may be replaced. The server then has its own process even with one worker, and each
            member on another host its own ssh connection.
        placement: Hosts of the members; None: this host.
        join_endpoint: Address where elastic workers may join.
        blobs: Store of the jobs' blobs, which stays when the engine stops; None: one of the engine's own.

    Raises:
        UsageError: If a number is below 1, or no worker can join at the address.
    """

    name = "nfdt"
    reception: JoinListener | None = None

    def __init__(
        self,
        workers: int,
        run_dir: Path,
        *,
        ps: int = 1,
        apart: bool = False,
        placement: Placement | None = None,
        join_endpoint: JoinEndpoint | None = None,
        blobs: LocalBlobs | None = None,
    ) -> None:
        if workers < 1 or ps < 1:
            raise UsageError(f"-np and --ps must be 1 or more. Received: {workers} and {ps}")
        self.workers, self.run_dir = workers, run_dir
        self.blobs, self._owned = blobs or LocalBlobs.create(), blobs is None
        self._sockets = tempfile.mkdtemp(prefix="servers-", dir=self.blobs.directory)
        members = (
            placement.identity if placement else run_identity() if join_endpoint and join_endpoint.remote else None
        )
        self._addresses = self._listening(ps, placement, remote=members is not None)
        self._joinable, self._singly = join_endpoint is not None, apart
        apart = apart or placement is not None or self._joinable
        self._hosted = workers == ps == 1 and not apart  # the server in the only worker's process: no tensor is sent
        tasks = self._tasks(ps)
        launches = [(self._launcher(task.role, placement), task) for task in tasks]
        self._supervisor = Supervisor(self.name, run_dir, self.blobs, launches, members)
        try:
            if join_endpoint is not None:
                admit = admit_workers(self._supervisor.registry, workers, members)
                self.reception = JoinListener(join_endpoint, run_dir, admit, self.name)
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        self._supervisor.start()

    def train(self, commands: Iterator[Command]) -> Generator[Event, None, None]:
        self.start()
        return self._supervisor.run(
            ServersCoordinator(self.workers, self._addresses, self.blobs, hosted=self._hosted), commands
        )

    def stop(self) -> None:
        """End all processes and remove the run's resources."""
        self._supervisor.close()
        if self.reception is not None:
            self.reception.close()
        if self._owned:
            self.blobs.close()
        else:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def _listening(self, ps: int, placement: Placement | None, *, remote: bool) -> list[str]:
        """Return each server's addresses. `remote`: also for other hosts."""
        if placement is not None:
            return placement.addresses(self.workers, ps)
        here = [f"unix:{self._sockets}/ps-{shard}.sock" for shard in range(ps)]
        if not remote:
            return here
        return [f"{address},{ANYWHERE}:{port}" for address, port in zip(here, free_ports(ps), strict=True)]

    def _launcher(self, role: str, placement: Placement | None) -> Launcher:
        if placement is None:
            return LocalLauncher(self.run_dir)
        if role == "server":
            return placement.servers(self.run_dir, self.workers, len(self._addresses), singly=self._singly)
        return placement.workers(self.run_dir, self.workers, singly=self._singly)

    def _tasks(self, ps: int) -> list[Task]:
        if self._hosted:
            return [Task("worker", (sys.executable, "-m", "nfdt.worker.process", HOSTED), 1, {})]
        env = {
            "FDT_SERVERS": json.dumps(self._addresses),
            "FDT_WORKERS": str(self.workers),
            "FDT_PLACES": str(self.workers + (MOST if self._joinable else 0)),
        }
        server = Task("server", (sys.executable, "-m", "nfdt.server"), ps, env)
        return [server, Task("worker", (sys.executable, "-m", "nfdt.worker.process"), self.workers)]


class SimulationEngine(NfdtEngine):
    """Engine of a simulation.

    Args:
        workers: Number of simulated workers.
        run_dir: Directory of the run.
        cluster: File that describes the cluster; None: equal workers.
    """

    def __init__(self, workers: int, run_dir: Path, cluster: Path | None = None) -> None:
        self.workers, self.run_dir = workers, run_dir
        self.blobs, self._owned = LocalBlobs.create(), True
        env = {WORKERS_VARIABLE: str(workers), "TF_DETERMINISTIC_OPS": "1"}
        if cluster is not None:
            env[CLUSTER_VARIABLE] = str(cluster.resolve())
        task = Task("worker", (sys.executable, "-m", "nfdt.simulator.process"), 1, env)
        self._supervisor = Supervisor(self.name, run_dir, self.blobs, [(LocalLauncher(run_dir), task)])

    def train(self, commands: Iterator[Command]) -> Generator[Event, None, None]:
        self.start()
        return self._supervisor.run(ServersCoordinator(1, ["simulated"], self.blobs, hosted=True), commands)


class EmulationEngine(NfdtEngine):
    """NFDT with one worker per node of the cluster in `file`, and one server, on emulated hosts.

    Each node's links are shaped (fdt/launch/emulated.py) and its steps paced: a worker waits after a gradient until the
    node's time for it has passed. A slower machine is not compensated.

    Raises:
        UserError: The command has not the privileges.
    """

    def __init__(self, file: Path, run_dir: Path) -> None:
        from fdt.launch import emulated
        from fdt.network import EMULATED_CLUSTER_VARIABLE
        from fdt.network.reading import read_emulated  # imports YAML, which other engines do not need
        from fdt.network.topology import topology_of

        cluster = read_emulated(file)
        self.workers, self.run_dir = len(cluster.workers), run_dir
        self._network = emulated.EmulatedNetwork(topology_of(cluster))
        self.blobs, self._owned = LocalBlobs.create(), True
        self._addresses = [f"{emulated.address_of(0)}:{EMULATED_PORT}"]
        self._hosted = self._joinable = False

        def host(role: str, rank: int) -> emulated.EmulatedHost:
            return emulated.host_at_server(role) if role == "server" else emulated.host_on(cluster, rank)

        launcher = emulated.EmulatedLauncher(run_dir, self._network, host)
        shared = {EMULATED_VARIABLE: "1", EMULATED_CLUSTER_VARIABLE: str(file.resolve())}
        tasks = [Task(task.role, task.argv, task.count, {**task.env, **shared}) for task in self._tasks(1)]
        launches: list[tuple[Launcher, Task]] = [(launcher, task) for task in tasks]
        self._supervisor = Supervisor(self.name, run_dir, self.blobs, launches)

    def stop(self) -> None:
        """End all processes and remove the emulated network."""
        try:
            super().stop()
        finally:
            self._network.close()
