"""The summary at the end of a run, one fact per line, on stderr: `hfdt run train.py 2>&1 | grep throughput`."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fdt.report import JobSummary, Reporter, duration, nbytes, quantity, rate

if TYPE_CHECKING:
    from fdt.report.status import Clock
    from fdt.rpc.session_pb2 import EpochEnd, Event


@dataclass
class WorkerTotals:
    """The sums of one worker over all epochs."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0  # training time, with waits for other workers
    busy_seconds: float = 0.0  # without these waits


@dataclass
class StalenessTotals:
    """The staleness of the steps whose epochs report it."""

    steps: int = 0
    total: float = 0.0  # over these steps
    largest: float = 0.0

    def add(self, mean: float, largest: float, steps: int) -> None:
        """Add an epoch of `steps` steps."""
        self.steps += steps
        self.total += mean * steps
        self.largest = max(self.largest, largest)


@dataclass
class RunTotals:
    """The sums over all workers. `seconds`: wall time from the start of an epoch to its last step, over all epochs."""

    fits: int = 0
    epochs: int = 0
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    staleness: StalenessTotals = field(default_factory=StalenessTotals)
    workers: dict[int, WorkerTotals] = field(default_factory=dict)
    skipped: int = 0  # steps whose gradients were not finite
    faults: list[str] = field(default_factory=list)  # "worker 1 replaced"
    memberships: list[str] = field(default_factory=list)  # "worker 2 joined", "worker 2 left"
    algorithms: dict[str, None] = field(default_factory=dict)  # names, of all fits
    chosen: dict[str, None] = field(default_factory=dict)  # what options that are `auto` have become, and why

    def add(self, end: "EpochEnd", seconds: float) -> None:
        """Add an epoch that took `seconds` of wall time."""
        self.epochs += self.fits > 0  # a script's own loop has none
        self.steps += end.steps
        self.samples += end.samples
        self.skipped += end.skipped
        self.seconds += seconds
        self.bytes_sent += end.bytes_sent
        self.bytes_received += end.bytes_received
        if "staleness_mean" in end.extra:
            self.staleness.add(end.extra["staleness_mean"], end.extra["staleness_max"], end.steps)
        for share in end.workers:
            worker = self.workers.setdefault(share.rank, WorkerTotals())
            worker.steps += share.steps
            worker.samples += share.samples
            worker.seconds += share.seconds
            worker.busy_seconds += share.busy_seconds


class Summary(Reporter):
    """Sums the epochs of every `fit`; `failed` is set when one failed. Writes the summary at `close`."""

    def __init__(self, name: str, workers: int, logs: str, *, quiet: bool = False, clock: "Clock" = time.perf_counter):
        self._name, self.workers, self._logs, self._quiet, self._clock = name, workers, logs, quiet, clock
        self._started = clock()
        self.totals = RunTotals()
        self.failed = False

    def job(self, job: JobSummary) -> None:
        self.workers = job.workers
        self.totals.fits += 1

    def epoch_begin(self, epoch: int) -> None:
        self._started = self._clock()

    def event(self, event: "Event") -> None:
        kind = event.WhichOneof("kind")
        if kind == "ready":  # fits of one model say the same, which is shown once
            self.totals.algorithms |= dict.fromkeys(filter(None, [event.ready.algorithm]))
            self.totals.chosen |= dict.fromkeys(filter(None, [event.ready.why_chosen]))
        elif kind == "epoch_end":
            self.totals.add(event.epoch_end, self._clock() - self._started)
        elif kind == "fault":
            self.totals.faults.append(f"{event.fault.member} {event.fault.action}")
        elif kind == "membership":
            self.totals.memberships.append(f"{event.membership.member} {event.membership.action}")
        elif kind == "failed":
            self.failed = True

    def silence(self) -> None:
        """Write no summary: the run ended by an error or Ctrl-C, and only that is reported."""
        self._quiet = True

    def close(self) -> None:
        if self._quiet:
            return
        trained = self.totals.steps or self.totals.epochs
        for name, value in facts(self.totals, self.workers, self._logs).items() if trained else ():
            print(f"{self._name}: {name + ':':<12} {value}", file=sys.stderr)
        sys.stderr.flush()


def facts(totals: RunTotals, workers: int, logs: str) -> dict[str, str]:
    """Return the lines of the summary by name."""
    computing = computing_workers(totals)
    together = f"{computing:.2f} workers at the same time, on average"
    found = {
        "workers": str(workers),
        "algorithm": ", ".join(totals.algorithms),
        "trained": _trained(totals),
        "throughput": rate(totals.samples, totals.seconds),
        "computing": together if computing and len(totals.workers) > 1 else "",
        "moved": f"{nbytes(totals.bytes_sent)} sent, {nbytes(totals.bytes_received)} received by workers",
        "chosen": "; ".join(totals.chosen),
        "staleness": _staleness(totals.staleness),
        **{f"worker {rank}": _share(totals.workers[rank]) for rank in sorted(totals.workers)},
        "skipped": f"{quantity(totals.skipped, 'step')} with NaN or infinite gradients" if totals.skipped else "",
        "lost": ", ".join(totals.faults),
        "joined": ", ".join(totals.memberships),
        "logs": logs,
    }
    return {name: value for name, value in found.items() if value}


def computing_workers(totals: RunTotals) -> float:
    """Return the number of workers that computed at the same time, on average: their computing time over wall time.

    It is not the speed-up over one worker: workers that share cores or memory slow each other down.
    """
    if not totals.seconds:
        return 0.0
    return sum(worker.busy_seconds for worker in totals.workers.values()) / totals.seconds


def _trained(totals: RunTotals) -> str:
    fits = f" in {totals.fits} fits" if totals.fits > 1 else ""
    epochs = f"{quantity(totals.epochs, 'epoch')}, " if totals.epochs else ""
    return f"{epochs}{_steps(totals)}{fits}, {duration(totals.seconds)}"


def _steps(totals: RunTotals | WorkerTotals) -> str:
    return quantity(totals.steps, "step") + (f", {quantity(totals.samples, 'sample')}" if totals.samples else "")


def _staleness(totals: StalenessTotals) -> str:
    return f"mean {totals.total / totals.steps:.2f}, largest {totals.largest:g}" if totals.steps else ""


def _share(worker: WorkerTotals) -> str:
    return f"{_steps(worker)}, {duration(worker.seconds)}{_parts(worker)}"


def _parts(worker: WorkerTotals) -> str:
    if not worker.busy_seconds or not worker.seconds:  # the engine does not measure it in a script's own loop
        return ""
    computing = min(100, round(100 * worker.busy_seconds / worker.seconds))
    return f" ({computing}% computing, {100 - computing}% waiting)"


def as_record(totals: RunTotals, workers: int) -> Mapping[str, object]:
    """Return the totals as values for JSON."""
    return {
        "workers": workers,
        **{name: value for name, value in vars(totals).items() if name not in ("workers", "staleness")},
        "algorithms": list(totals.algorithms),
        "chosen": list(totals.chosen),
        "samples_per_second": totals.samples / totals.seconds if totals.seconds else 0.0,
        "computing_workers": computing_workers(totals),
        "per_worker": {rank: vars(worker) for rank, worker in sorted(totals.workers.items())},
    }
