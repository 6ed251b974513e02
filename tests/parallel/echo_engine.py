"""An engine whose members only answer."""

import sys
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.launch import Task
from fdt.service.crew import Crew
from hfdt.coordinator import RanksCoordinator
from hfdt.recovery import Recovery

ECHO = Path(__file__).with_name("echo_member.py")


class EchoEngine:
    name, workers = "echo", 2

    def __init__(self, launcher, run_dir):
        self.run_dir, self.blobs = run_dir, LocalBlobs.create()
        self.crew = Crew("echo", run_dir, self.blobs, [(launcher, Task("worker", (sys.executable, str(ECHO)), 2))])

    def start(self):
        self.crew.start()

    def train(self, commands):
        self.start()
        return self.crew.run(RanksCoordinator(Recovery(self.blobs, 2)), commands)

    def stop(self):
        self.crew.close()
        self.blobs.close()
