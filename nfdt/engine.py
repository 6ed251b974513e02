"""NFDT's engine: parameter servers and workers as local processes, kept warm between jobs."""

import sys
from collections.abc import Iterator
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.errors import UsageError
from fdt.launch import Task
from fdt.launch.local import LocalLauncher
from fdt.rpc.session_pb2 import Command, Event
from fdt.service.crew import Crew
from nfdt.coordinator import ServersCoordinator


class NfdtEngine:
    """`workers` workers, and `ps` parameter servers that share the variables.

    `apart`: a server has a process of its own even where there is one worker. Raises UsageError when a number is less
    than 1.
    """

    name = "nfdt"

    def __init__(self, workers: int, run_dir: Path, *, ps: int = 1, apart: bool = False) -> None:
        if workers < 1 or ps < 1:
            raise UsageError(f"-np and --ps must be 1 or more. Received: {workers} and {ps}")
        self.workers, self.run_dir = workers, run_dir
        self.blobs = LocalBlobs.create()
        self._addresses = [f"unix:{self.blobs.directory}/ps-{shard}.sock" for shard in range(ps)]
        self._hosted = workers == ps == 1 and not apart  # in the only worker's process nothing has to travel
        tasks = self._tasks(ps)
        launcher = LocalLauncher(run_dir)
        self._crew = Crew(self.name, run_dir, self.blobs, [(launcher, task) for task in tasks])

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

    def _tasks(self, ps: int) -> list[Task]:
        worker = (sys.executable, "-m", "nfdt.worker")
        if self._hosted:
            return [Task("worker", worker, 1, {"NFDT_HOSTS_SERVER": "1"})]
        env = {"NFDT_SERVERS": ",".join(self._addresses), "NFDT_WORKERS": str(self.workers)}
        server = Task("server", (sys.executable, "-m", "nfdt.server"), ps, env)
        return [server, Task("worker", worker, self.workers)]
