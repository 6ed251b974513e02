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
    name, workers = "echo", 2

    def __init__(self, launcher, run_dir, blobs=None):
        self.run_dir, self.blobs, self.owned = run_dir, blobs or LocalBlobs.create(), blobs is None
        self.supervisor = Supervisor(
            "echo", run_dir, self.blobs, [(launcher, Task("worker", (sys.executable, str(ECHO)), 2))]
        )

    def start(self):
        self.supervisor.start()

    def train(self, commands):
        self.start()
        return self.supervisor.run(RanksCoordinator(RankRecovery(self.blobs, 2)), commands)

    def stop(self):
        self.supervisor.close()
        if self.owned:
            self.blobs.close()
