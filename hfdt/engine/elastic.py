"""The engine of `hfdt run --host-discovery-script`: its number of ranks follows the slots of the listed hosts."""

from collections.abc import Callable
from pathlib import Path

from fdt.errors import TooFew
from fdt.launch import Processes, Task
from fdt.launch.hosts import is_here
from fdt.launch.over_hosts import HostsLauncher
from fdt.launch.placement import run_identity
from hfdt.engine.coordinator import RanksCoordinator
from hfdt.engine.engine import HfdtEngine
from hfdt.engine.growing import GrowingCoordinator, SizeLimits
from hfdt.engine.host_pool import HostPool, total
from hfdt.engine.launchers import choose_launcher
from hfdt.engine.recovery import RankRecovery


class ElasticHfdtEngine(HfdtEngine):
    """HFDT on the slots of a pool of hosts, which come and go.

    Args:
        pool: The hosts.
        limits: The fewest and the most ranks.
        run_dir: The directory of logs.
        close: Called when the engine stops: ends the discovery of hosts.
        launcher: How ranks on this machine alone are started: "auto", "mpi" or "gloo".
        comm: "auto", "horovod" or "mpi".
        bind_to: "cores" or "none".
    """

    def __init__(
        self,
        pool: HostPool,
        limits: SizeLimits,
        run_dir: Path,
        *,
        close: Callable[[], None] = lambda: None,
        launcher: str = "auto",
        comm: str = "auto",
        bind_to: str = "cores",
    ) -> None:
        self._pool, self._limits, self._close = pool, limits, close
        ranks = PoolLauncher(run_dir, pool, launcher)
        super().__init__(
            limits.size(pool.available()), run_dir, launcher=ranks, comm=comm, bind_to=bind_to, identity=run_identity()
        )
        self._coordinator: GrowingCoordinator | None = None

    def start(self) -> None:
        """Start ranks on the slots that there are. Raises TooFew."""
        left = self._coordinator is not None and self._coordinator.asked is not None
        if self._supervisor.launched and (left or self._pool.gone()):
            self._supervisor.end()
        running = total(self._pool.in_use) if self._supervisor.launched else 0
        size = running or self._limits.size(self._pool.available())
        if size < self._limits.least:
            raise TooFew(f"there are {size} slots, and {self._limits.least} are needed ({self._pool.listed()})", size)
        self._supervisor.start(size)

    def stop(self) -> None:
        """End the ranks and the discovery of hosts."""
        self._close()
        super().stop()

    def _coordinated(self) -> tuple[RankRecovery, RanksCoordinator]:
        recovery = RankRecovery(self.blobs, total(self._pool.in_use), elastic=True)
        self._coordinator = GrowingCoordinator(recovery, self._pool, self._limits)
        return recovery, self._coordinator


class PoolLauncher:
    """Starts ranks on the slots of a pool: as on one machine where all are on this one, else by mpirun over hosts."""

    def __init__(self, run_dir: Path, pool: HostPool, launcher: str) -> None:
        self._run_dir, self._pool, self._launcher = run_dir, pool, launcher

    def start(self, task: Task) -> Processes:
        """Implement Launcher. Raises TooFew where hosts do not answer."""
        hosts = self._pool.take(task.count)
        if all(is_here(host.name) for host in hosts):
            return choose_launcher(self._launcher, self._run_dir, task.count).start(task)
        return HostsLauncher(self._run_dir, hosts, self._pool.routes).start(task)
