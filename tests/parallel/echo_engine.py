"""An engine whose members only send answers and do not train."""

import sys
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.launch import Task
from fdt.supervise.supervisor import Supervisor
from hfdt.engine.coordinator import RanksCoordinator
from hfdt.engine.recovery import RankRecovery

ECHO = Path(__file__).with_name("echo_member.py")


class EchoEngine:
    name = "echo"

    def __init__(self, launcher, run_dir, blobs=None, workers=2):
        self.workers, self.run_dir = workers, run_dir
        self.blobs, self.owned = blobs or LocalBlobs.create(), blobs is None
        self.supervisor = Supervisor(
            "echo", run_dir, self.blobs, [(launcher, Task("worker", (sys.executable, str(ECHO)), workers))]
        )

    def start(self):
        self.supervisor.start()

    def train(self, commands):
        self.start()
        return self.supervisor.run(RanksCoordinator(RankRecovery(self.blobs, self.workers)), commands)

    def stop(self):
        self.supervisor.close()
        if self.owned:
            self.blobs.close()
