"""Engine of `nfdt run --emulate`: workers and server on emulated hosts, as a cluster file describes them.

Each node's links are shaped (fdt/launch/emulated.py) and its steps paced: a worker waits after a gradient until the
node's time for it has passed. A slower machine is not compensated.
"""

from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.launch import Launcher, Task
from fdt.launch.emulated import EmulatedHost, EmulatedLauncher, EmulatedNetwork, address_of, host_at_server, host_on
from fdt.network import EMULATED_CLUSTER_VARIABLE
from fdt.network.reading import read_emulated
from fdt.network.topology import topology_of
from fdt.service.transport import EMULATED_VARIABLE
from fdt.supervise.supervisor import Supervisor
from nfdt.engine.engine import NfdtEngine

PORT = 7077


class EmulationEngine(NfdtEngine):
    """NFDT with one worker per node of the cluster in `file`, and one server. Raises UserError without privileges."""

    def __init__(self, file: Path, run_dir: Path) -> None:
        self._cluster = read_emulated(file)
        self.workers, self.run_dir = len(self._cluster.workers), run_dir
        self._network = EmulatedNetwork(topology_of(self._cluster))
        self.blobs, self._owned = LocalBlobs.create(), True
        self._addresses = [f"{address_of(0)}:{PORT}"]
        self._hosted = self._joinable = False
        launcher = EmulatedLauncher(run_dir, self._network, self._host)
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

    def _host(self, role: str, rank: int) -> EmulatedHost:
        return host_at_server(role) if role == "server" else host_on(self._cluster, rank)
