"""The data of one run that the page shows, gathered from the records of records.jsonl one by one."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fdt.report.status import EpochProgress
from frontends.report.curves import Curve, Curves, as_json, curve_of, finite

Record = Mapping[str, Any]
RUNNING_S = 0.2  # seconds between two points of a curve within an epoch, at least
RUNNING_POINTS = 1000  # and of the time so far this part
MEMORY_POINTS = 100  # buckets of a worker's memory curve
MOST_EVENTS = 500  # faults, notes and others that the page lists
NOT_FINITE = ("nan", "inf", "infinity")
ENGINES_LOGS = {"simulated_s", "staleness_mean", "staleness_median", "staleness_max"}  # no metrics of the script
COUNTS = ("steps", "samples", "seconds", "busy_seconds", "bytes_sent", "bytes_received")


@dataclass(frozen=True)
class WorkerProgress:
    """A worker's report within an epoch, with the fields that EpochProgress reads."""

    rank: int
    epoch: int
    step: int
    samples: int
    record: Record

    @classmethod
    def of(cls, record: Record) -> "WorkerProgress":
        """Return the report in a record `progress`. Raises ValueError, TypeError or KeyError where there is none."""
        if not isinstance(record["logs"], dict):
            raise TypeError("logs must be an object")
        return cls(int(record["rank"]), int(record["epoch"]), int(record["step"]), int(record["samples"]), record)

    @property
    def logs(self) -> dict[str, float]:
        """The finite values."""
        values = ((name, finite(value)) for name, value in self.record["logs"].items())
        return {name: value for name, value in values if value is not None}


@dataclass
class WorkerData:
    """One worker: where it runs, its last report, and its sums over epochs."""

    rank: int
    state: str = ""
    host: str = ""
    pid: int = 0
    log: str = ""
    at: str = ""
    memory_bytes: int = 0
    peak_bytes: int = 0
    staleness: float | None = None
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0.0))
    memory: Curve = field(default_factory=lambda: Curve(MEMORY_POINTS))

    def as_json(self) -> dict[str, Any]:
        shown = {name: value for name, value in vars(self).items() if name not in ("totals", "memory")}
        return {**shown, **self.totals, "memory": self.memory.as_json()}


class RunData:
    """One run. `add` takes its records in order; `as_json` returns what the page draws.

    The epochs of all fits are counted together. Seconds count from the first record.

    Args:
        name: The run's name on the page.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.state, self.error = "running", ""
        self.about: dict[str, Any] = {}
        self.jobs: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.workers: dict[int, WorkerData] = {}
        self.events: list[dict[str, Any]] = []
        self.all_events = 0
        self.spans: list[list[float]] = []  # each epoch's first and last second
        self.curves: Curves = {}  # of the script's metrics
        self.measures: Curves = {}  # rate, staleness, bytes, steps
        self.started = self.ended = 0.0  # seconds since 1970
        self._finished = self._fit_epochs = 0  # epochs of earlier fits, and of this one
        self._restarted = False  # the next job is that of a run that was resumed
        self._progress = EpochProgress(False)
        self._reports: dict[int, WorkerProgress] = {}  # by rank, the last one that is not taken yet
        self._epoch_at = self._drawn = 0.0
        self._samples_before = (0.0, 0)
        self._not_finite: set[str] = set()
        self._handlers: dict[str, Callable[[Record], None]] = {
            "run": self._run,
            "attached": self._attached,
            "job": self._job,
            "progress": self._on_progress,
            "training": self._training,
            "epoch_end": self._epoch_end,
            "epoch": self._epoch,
            "note": self._event,
            "fault": self._lost,
            "membership": self._membership,
            "failed": self._failed,
            "summary": self._summary,
            "end": self._end,
        }

    def add(self, record: Record) -> None:
        """Add a record. Raises TypeError, ValueError, KeyError or AttributeError for one that is malformed."""
        at = finite(record["time"])
        if at is None:
            raise ValueError("a record needs a time")
        handler = self._handlers.get(record["kind"])
        self.started = self.started or at
        self.ended = max(self.ended, at)
        if handler is not None:
            handler(record)

    def as_json(self) -> dict[str, Any]:
        """Return the run as values for JSON."""
        self._take_reports()
        return {
            **{name: getattr(self, name) for name in ("name", "state", "error", "about", "jobs", "events", "spans")},
            "all_events": self.all_events,
            "started": self.started,
            "seconds": self.ended - self.started,
            "summary": self.summary,
            "workers": [self.workers[rank].as_json() for rank in sorted(self.workers)],
            "curves": as_json(self.curves),
            "measures": as_json(self.measures),
        }

    # -- the run and its fits ---------------------------------------------------------------------------------------
    def _run(self, record: Record) -> None:
        self._restarted = bool(self.jobs)
        self.state, self.error = "running", ""
        self.about = {name: value for name, value in record.items() if name not in ("kind", "job")}
        if self._restarted:
            self._event({**record, "text": "the run was resumed"})

    def _job(self, record: Record) -> None:
        last = self.jobs[-1] if self.jobs else {}
        continues = self._restarted and self._fit_epochs < int(last.get("epochs", 0))
        if self.jobs and not continues:
            self._finished += self._fit_epochs
        self._fit_epochs = int(record.get("initial_epoch") or 0) if not continues else self._fit_epochs
        self._restarted = False
        job = {name: value for name, value in record.items() if name not in ("kind", "time")}
        self.jobs = [*self.jobs[: -1 if continues else None], job]
        self._progress = EpochProgress(record.get("engine") == "nfdt")
        self._epoch_at = self._since(record)

    def _training(self, record: Record) -> None:
        step = int(record["step"])
        self._worker(0).at = f"step {step:,}"
        curve_of(self.measures, "steps", "done").add(0.0, self._since(record), step)

    def _summary(self, record: Record) -> None:
        self.summary = {name: value for name, value in record.items() if name not in ("kind", "time", "job")}
        self.state = "finished" if self.state == "running" else self.state

    def _end(self, record: Record) -> None:
        self._take_reports()
        code = int(record["code"])
        self.state = "interrupted" if code in (130, 143) else "finished" if code == 0 else "failed"
        self.error = str(record.get("error") or "") or (f"exit code {code}" if code else "")
        for worker in self.workers.values():
            worker.state = "ended"

    # -- epochs ------------------------------------------------------------------------------------------------------
    def _on_progress(self, record: Record) -> None:
        report = WorkerProgress.of(record)
        if report.epoch < self._progress.epoch:
            return  # a late report of the last epoch
        now = self._since(record)
        if report.epoch != self._progress.epoch:
            self._take_reports()
            self._progress.begin(report.epoch)
            self._samples_before, self._drawn = (now, 0), -math.inf
        self._reports[report.rank] = report
        if now - self._drawn >= max(RUNNING_S, now / RUNNING_POINTS):
            self._drawn = now
            self._take_reports()
            self._draw_running(report.epoch, now)

    def _take_reports(self) -> None:
        """Take each worker's last report since the last call. Reports in between are skipped: there are many."""
        for report in self._reports.values():
            worker = self._worker(report.rank)
            worker.state, worker.at = "training", f"epoch {report.epoch + 1}, step {report.step:,}"
            self._measured(worker, report.record)
            self._watch_finite(report.record, report.record["logs"])
            if report.epoch == self._progress.epoch:
                self._progress.progress(report.rank, report)  # type: ignore[arg-type]
        self._reports.clear()

    def _draw_running(self, epoch: int, now: float) -> None:
        steps = int(self.jobs[-1].get("steps_per_epoch") or 0) if self.jobs else 0
        part = min(1.0, self._progress.step / steps) if steps else 0.0
        for name, value in self._progress.logs.items():
            self._draw(self.curves, name, "running", self._finished + epoch + part, now, value)
        (before, samples), done = self._samples_before, self._progress.samples
        if now - before >= 1.0 and done > samples:
            rate = (done - samples) / (now - before)
            curve_of(self.measures, "rate", "running").add(self._finished + epoch + part, now, rate)
            self._samples_before = now, done

    def _epoch_end(self, record: Record) -> None:
        self._take_reports()
        now, epoch = self._since(record), self._finished + int(record["epoch"]) + 1
        self.spans.append([round(self._epoch_at, 3), round(now, 3)])
        seconds, extra = finite(record["seconds"]) or 0.0, record.get("extra") or {}
        found = {
            ("rate", "train"): record["samples"] / seconds if seconds else None,
            ("staleness", "mean"): extra.get("staleness_mean"),
            ("staleness", "largest"): extra.get("staleness_max"),
            ("bytes", "sent"): record.get("bytes_sent"),
            ("bytes", "received"): record.get("bytes_received"),
        }
        for (name, kind), value in found.items():
            self._draw(self.measures, name, kind, epoch, now, value)
        for share in record.get("workers") or ():
            worker = self._worker(int(share["rank"]))
            for name in COUNTS:
                worker.totals[name] += finite(share.get(name)) or 0.0
            worker.state, worker.at = "waiting", f"epoch {int(record['epoch']) + 1}, step {int(share['steps']):,}"
            self._measured(worker, {**share, "time": record["time"]})

    def _epoch(self, record: Record) -> None:
        now, epoch = self._since(record), int(record["epoch"])
        self._fit_epochs, self._epoch_at = max(self._fit_epochs, epoch + 1), now
        self._watch_finite(record, record["logs"])
        for name, value in record["logs"].items():
            kind = "validation" if name.startswith("val_") else "train"
            self._draw(self.curves, name.removeprefix("val_"), kind, self._finished + epoch + 1, now, value)

    # -- members ----------------------------------------------------------------------------------------------------
    def _attached(self, record: Record) -> None:
        if record["role"] != "worker":
            return
        self._take_reports()
        worker = self._worker(int(record["rank"]))
        worker.host, worker.pid, worker.log = str(record["host"]), int(record["pid"]), str(record["log"])
        worker.state = "attached"

    def _lost(self, record: Record) -> None:
        self._event({**record, "text": record["message"]})
        self._mark(record, "lost")

    def _membership(self, record: Record) -> None:
        self._event({**record, "text": record["message"]})
        self._mark(record, "attached" if record["action"] == "joined" else str(record["action"]))

    def _failed(self, record: Record) -> None:
        self._event({**record, "text": record["message"]})
        self.state, self.error = "failed", str(record["message"])

    def _mark(self, record: Record, state: str) -> None:
        self._take_reports()
        role, _, rank = str(record["member"]).partition(" ")
        if role == "worker" and rank.isdecimal():
            self._worker(int(rank)).state = state

    def _measured(self, worker: WorkerData, record: Record) -> None:
        memory = int(finite(record.get("memory_bytes")) or 0)
        if memory:
            worker.memory_bytes, worker.peak_bytes = memory, max(worker.peak_bytes, memory)
            worker.memory.add(self._finished + self._fit_epochs, self._since(record), memory)
        if self.jobs and self.jobs[-1].get("engine") == "nfdt":
            worker.staleness = finite(record.get("staleness"))

    # -- parts -------------------------------------------------------------------------------------------------------
    def _event(self, record: Record) -> None:
        text = str(record["text"])
        self.all_events += 1
        if len(self.events) < MOST_EVENTS:
            self.events.append({"t": round(self._since(record), 3), "kind": str(record["kind"]), "text": text})

    def _watch_finite(self, record: Record, logs: Mapping[str, Any]) -> None:
        """List the first value of each metric that is NaN or infinite: no curve shows it."""
        for name, value in logs.items():
            if name not in self._not_finite and finite(value) is None and str(value).lower().strip("+-") in NOT_FINITE:
                self._not_finite.add(name)
                text = f"{name} is {value} in epoch {int(record['epoch']) + 1}; its curve leaves such values out"
                self._event({"kind": "not finite", "time": record["time"], "text": text})

    def _draw(self, curves: Curves, name: str, kind: str, epoch: float, now: float, value: object) -> None:
        number = finite(value)
        if number is not None and name not in ENGINES_LOGS:
            curve_of(curves, name, kind).add(epoch, now, number)

    def _worker(self, rank: int) -> WorkerData:
        return self.workers.setdefault(rank, WorkerData(rank))

    def _since(self, record: Record) -> float:
        return float(record["time"]) - self.started
