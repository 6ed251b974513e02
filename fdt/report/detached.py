"""The progress of a detached run, recorded for a later `attach`."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from fdt.report import JobSummary, Reporter
from fdt.report.plain import Clock
from fdt.report.status import Status
from fdt.rpc.session_pb2 import Event

NOTE_S = 0.5  # seconds between two records within an epoch


class DetachedReporter(Reporter):
    """Calls `note` with: begun (a step has been trained), at ("3/10", "step 400"), line (a progress bar's text)."""

    def __init__(self, adds_steps: bool, note: Callable[[Mapping[str, Any]], None], clock: Clock = time.monotonic):
        self._status, self._write, self._clock = Status(adds_steps, clock), note, clock
        self._whose = " of worker 0" if adds_steps else ""
        self._fits = self._step = 0
        self._validates = self._begun = False
        self._noted = 0.0

    def job(self, job: JobSummary) -> None:
        self._fits += 1
        self._validates = job.validation
        self._status.job(job)

    def epoch_begin(self, epoch: int) -> None:
        self._status.begin(epoch)
        self._note(self._status.line("starting"))

    def event(self, event: Event) -> None:
        if event.HasField("epoch_end"):
            self._begun = True
            self._note(self._status.line("validating", event.epoch_end.steps) if self._validates else "")
        elif self._status.add(event) and (not self._begun or self._clock() - self._noted >= NOTE_S):
            self._begun = True
            self._note(self._status.line())

    def training(self, step: int) -> None:
        self._begun, self._step = True, step
        self._note("")

    def job_end(self) -> None:
        self._note("")

    def _note(self, line: str) -> None:
        self._noted = self._clock()
        own = f"step {self._step:,}{self._whose}" if self._step else ""  # a script's own loop has no epochs
        behind = f" of fit {self._fits}" if self._fits > 1 else ""
        at = own or (f"{self._status.epoch}{behind}" if self._fits else "")
        self._write({"begun": self._begun, "at": at, "line": line or own})
