"""Engine of `nfdt simulate`: one process that simulates all workers and the server."""

import sys
from collections.abc import Iterator
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.launch import Task
from fdt.launch.local import LocalLauncher
from fdt.rpc.session_pb2 import Command, Event
from fdt.supervise.supervisor import Supervisor
from nfdt.engine.coordinator import ServersCoordinator


class SimulationEngine:
    """Engine of a simulation.

    Args:
        workers: Number of simulated workers.
        run_dir: Directory of the run.
        cluster: File that describes the cluster; None: equal workers.
    """

    name = "nfdt"

    def __init__(self, workers: int, run_dir: Path, cluster: Path | None = None) -> None:
        self.workers, self.run_dir = workers, run_dir
        self.blobs = LocalBlobs.create()
        env = {WORKERS_VARIABLE: str(workers), "TF_DETERMINISTIC_OPS": "1"}
        if cluster is not None:
            env[CLUSTER_VARIABLE] = str(cluster.resolve())
        task = Task("worker", (sys.executable, "-m", "nfdt.simulator.process"), 1, env)
        self._supervisor = Supervisor(self.name, run_dir, self.blobs, [(LocalLauncher(run_dir), task)])

    def start(self) -> None:
        """Start the process."""
        self._supervisor.start()

    def train(self, commands: Iterator[Command]) -> Iterator[Event]:
        """Run one job: yield the events that answer `commands`."""
        self.start()
        return self._supervisor.run(ServersCoordinator(1, ["simulated"], self.blobs, hosted=True), commands)

    def stop(self) -> None:
        """End the process and remove the run's resources."""
        self._supervisor.close()
        self.blobs.close()


CLUSTER_VARIABLE = "NFDT_CLUSTER"  # path of the cluster file; not set: equal nodes
WORKERS_VARIABLE = "NFDT_SIMULATED_WORKERS"
