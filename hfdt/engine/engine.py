"""The engine of HFDT: it runs ranks under Horovod or MPI and keeps them between jobs."""

import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.errors import TooFew
from fdt.launch import Launcher, Task
from fdt.launch.placement import Placement
from fdt.rpc.session_pb2 import Command, Event, Failed
from fdt.security.auth import TlsIdentity
from fdt.supervise.supervisor import Supervisor
from hfdt.engine.coordinator import RanksCoordinator
from hfdt.engine.launchers import choose_launcher
from hfdt.engine.recovery import RankRecovery

SEGMENT_BYTES = 17 << 20  # Open MPI's shared memory for each rank (observed with 5.0: a little more than 16 MiB)


class HfdtEngine:
    """The engine of a run.

    Args:
        workers: The number of ranks.
        run_dir: The directory of logs.
        launcher: "auto", "mpi", "gloo", or the launcher itself.
        comm: "auto", "horovod" or "mpi".
        bind_to: "cores" binds each rank to its part of the cores, "none" leaves it to the scheduler.
        placement: The hosts, where there are others than this one.
        blobs: The store of the jobs' blobs, which stays when the engine stops; None: one of the engine's own.
        identity: The certificate of the ranks, where some may be on other hosts; None: the placement's.

    Raises:
        UserError: The launcher does not work on this machine.
    """

    name = "hfdt"

    def __init__(
        self,
        workers: int,
        run_dir: Path,
        *,
        launcher: str | Launcher = "auto",
        comm: str = "auto",
        bind_to: str = "cores",
        placement: Placement | None = None,
        blobs: LocalBlobs | None = None,
        identity: TlsIdentity | None = None,
    ) -> None:
        self.workers, self.run_dir = workers, run_dir
        if not isinstance(launcher, str):
            started_by = launcher
        elif placement is None:
            started_by = choose_launcher(launcher, run_dir, workers)
        else:
            started_by = placement.workers(run_dir, workers)
        self.blobs = blobs or LocalBlobs.create()
        self._owned = blobs is None
        # A killed rank's segments are removed with the engine, or with its job.
        segments = tempfile.mkdtemp(prefix="mpi-", dir=self.blobs.directory_for(workers * SEGMENT_BYTES))
        self._segments = Path(segments)
        env = {"FDT_COMM": comm, "FDT_BIND_TO": bind_to, "OMPI_MCA_btl_sm_backing_directory": segments}
        if placement is None:  # the files of a killed mpirun are removed too: Open MPI 5, 4
            env.update(dict.fromkeys(("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base"), segments))
        task = Task("worker", (sys.executable, "-m", "hfdt.worker.process"), workers, env)
        members = placement.identity if placement else identity
        self._supervisor = Supervisor(self.name, run_dir, self.blobs, [(started_by, task)], members)

    def start(self) -> None:
        self._supervisor.start()

    def train(self, commands: Iterator[Command]) -> Generator[Event, None, None]:
        try:
            self.start()
        except TooFew as error:  # the job's options decide whether the started ranks are enough
            return self._train(commands, error)
        return self._train(commands)

    def _train(self, commands: Iterator[Command], missing: TooFew | None = None) -> Generator[Event, None, None]:
        recovery, coordinator = self._coordinated()
        if missing is not None:
            coordinator.short(missing.room, Failed(message=str(missing)))
        try:
            yield from self._supervisor.run(coordinator, commands)
        finally:
            recovery.drop()
            if coordinator.failed or not coordinator.done:  # all ranks have ended
                for left in self._segments.iterdir():
                    shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)

    def _coordinated(self) -> tuple[RankRecovery, RanksCoordinator]:
        """Return the coordinator of a job, and its recovery."""
        recovery = RankRecovery(self.blobs, self.workers)
        return recovery, RanksCoordinator(recovery)

    def stop(self) -> None:
        """Stop the ranks and release shared memory."""
        self._supervisor.close()
        shutil.rmtree(self._segments, ignore_errors=True)
        if self._owned:
            self.blobs.close()

    def pids(self) -> list[int]:
        """Return the process numbers of the ranks that are attached."""
        return [member.pid for member in self._supervisor.registry.attached.values()]
