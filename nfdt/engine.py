"""NFDT's engine: parameter servers and workers as local processes, kept warm between jobs."""

import sys
from collections.abc import Iterator
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.errors import UsageError
from fdt.launch import Launcher, Task
from fdt.launch.local import LocalLauncher
from fdt.launch.placement import Placement
from fdt.rpc.session_pb2 import Command, Event
from fdt.service.crew import Crew
from nfdt.coordinator import ServersCoordinator


class NfdtEngine:
    """`workers` workers, and `ps` parameter servers that share the variables.

    `apart`: a server has a process of its own even where there is one worker. `placement`: the hosts that they are on,
    where these are not this one alone. Raises UsageError when a number is less
    than 1.
    """

    name = "nfdt"

    def __init__(
        self, workers: int, run_dir: Path, *, ps: int = 1, apart: bool = False, placement: Placement | None = None
    ) -> None:
        if workers < 1 or ps < 1:
            raise UsageError(f"-np and --ps must be 1 or more. Received: {workers} and {ps}")
        self.workers, self.run_dir = workers, run_dir
        self.blobs = LocalBlobs.create()
        if placement is None:
            self._addresses = [f"unix:{self.blobs.directory}/ps-{shard}.sock" for shard in range(ps)]
        else:
            self._addresses = placement.addresses(workers, ps)
        apart = apart or placement is not None
        self._hosted = workers == ps == 1 and not apart  # in the only worker's process nothing has to travel
        tasks = self._tasks(ps)
        launches = [(self._launcher(task.role, placement), task) for task in tasks]
        self._crew = Crew(self.name, run_dir, self.blobs, launches, placement.identity if placement else None)

    def start(self) -> None:
        self._crew.start()

    def train(self, commands: Iterator[Command]) -> Iterator[Event]:
        self.start()
        return self._crew.run(
            ServersCoordinator(self.workers, self._addresses, self.blobs, hosted=self._hosted), commands
        )

    def stop(self) -> None:
        self._crew.close()
        self.blobs.close()

    def _launcher(self, role: str, placement: Placement | None) -> Launcher:
        if placement is None:
            return LocalLauncher(self.run_dir)
        if role == "server":
            return placement.servers(self.run_dir, self.workers, len(self._addresses))
        return placement.workers(self.run_dir, self.workers)

    def _tasks(self, ps: int) -> list[Task]:
        worker = (sys.executable, "-m", "nfdt.worker")
        if self._hosted:
            return [Task("worker", worker, 1, {"NFDT_HOSTS_SERVER": "1"})]
        env = {"NFDT_SERVERS": ",".join(self._addresses), "NFDT_WORKERS": str(self.workers)}
        server = Task("server", (sys.executable, "-m", "nfdt.server"), ps, env)
        return [server, Task("worker", worker, self.workers)]
