"""HFDT's engine: Horovod (or MPI) ranks, kept warm between jobs."""

import sys
from collections.abc import Iterator
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.errors import TooFew
from fdt.launch import Task
from fdt.launch.placement import Placement
from fdt.rpc.session_pb2 import Command, Event, Failed
from fdt.supervise.supervisor import Supervisor
from hfdt.engine.coordinator import RanksCoordinator
from hfdt.engine.launchers import choose_launcher
from hfdt.engine.recovery import RankRecovery

SEGMENT_BYTES = 17 << 20  # of Open MPI in shared memory, for each rank (seen with 5.0: 16 MiB and a little)


class HfdtEngine:
    """`workers` ranks under `launcher` ("auto" | "mpi" | "gloo"), exchanging by `comm` ("auto" | "horovod" | "mpi").

    `bind_to`: "cores" keeps each rank on its share of them, "none" leaves it to the scheduler. `placement`: the hosts,
    where they are not this one alone.
    Raises UserError when no such launcher can work here.
    """

    name = "hfdt"

    def __init__(
        self,
        workers: int,
        run_dir: Path,
        *,
        launcher: str = "auto",
        comm: str = "auto",
        bind_to: str = "cores",
        placement: Placement | None = None,
    ) -> None:
        self.workers, self.run_dir = workers, run_dir
        if placement is None:
            started_by = choose_launcher(launcher, run_dir, workers)
        else:
            started_by = placement.workers(run_dir, workers)
        self.blobs = LocalBlobs.create()
        segments = str(self.blobs.directory_for(workers * SEGMENT_BYTES))  # there a killed rank's go with the run
        env = {"HFDT_COMM": comm, "HFDT_BIND_TO": bind_to, "OMPI_MCA_btl_sm_backing_directory": segments}
        if placement is None:  # a killed mpirun's files, likewise: Open MPI 5, 4
            env.update(dict.fromkeys(("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base"), segments))
        task = Task("worker", (sys.executable, "-m", "hfdt.worker.process"), workers, env)
        self._supervisor = Supervisor(
            self.name, run_dir, self.blobs, [(started_by, task)], placement.identity if placement else None
        )

    def start(self) -> None:
        self._supervisor.start()

    def train(self, commands: Iterator[Command]) -> Iterator[Event]:
        try:
            self.start()
        except TooFew as error:  # the job says whether these will do
            return self._train(commands, error)
        return self._train(commands)

    def _train(self, commands: Iterator[Command], missing: TooFew | None = None) -> Iterator[Event]:
        recovery = RankRecovery(self.blobs, self.workers)
        coordinator = RanksCoordinator(recovery)
        if missing is not None:
            coordinator.short(missing.room, Failed(message=str(missing)))
        try:
            yield from self._supervisor.run(coordinator, commands)
        finally:
            recovery.drop()

    def stop(self) -> None:
        self._supervisor.close()
        self.blobs.close()
