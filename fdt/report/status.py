"""The status line of an epoch: `Epoch 3/10  ━━━━────  51/128  11,764 samples/s  ETA 3.1s  loss: 0.3211`."""

from collections.abc import Callable

from fdt.report import JobSummary, duration, format_logs, rate
from fdt.rpc.session_pb2 import Event, Progress, StepEnd

Clock = Callable[[], float]

WIDTH = 20  # characters of the bar


class EpochProgress:
    """The aggregated progress of an epoch.

    `adds_steps`: each worker takes steps of its own (asynchronous); otherwise all workers take part in every step.
    """

    def __init__(self, adds_steps: bool) -> None:
        self._adds_steps = adds_steps
        self._workers: dict[int, Progress] = {}
        self._lock_step: StepEnd | None = None
        self.epoch = -1

    def begin(self, epoch: int) -> None:
        """Start an epoch."""
        self.epoch = epoch
        self._workers = {}
        self._lock_step = None

    def progress(self, rank: int, progress: Progress) -> None:
        """Add a worker's report; a late one of another epoch is ignored."""
        if progress.epoch == self.epoch:
            self._workers[rank] = progress

    def step_end(self, step: StepEnd) -> None:
        """Add the engine's aggregate of a step, which it sends for every step in lock step."""
        self._lock_step = step

    @property
    def step(self) -> int:
        if self._lock_step is not None:
            return self._lock_step.step
        steps = [worker.step for worker in self._workers.values()]
        return sum(steps) if self._adds_steps else max(steps, default=0)

    @property
    def samples(self) -> int:
        return sum(worker.samples for worker in self._workers.values())

    @property
    def logs(self) -> dict[str, float]:
        """Each metric's mean over the workers that have it, weighted by their samples."""
        if self._lock_step is not None:
            return dict(self._lock_step.logs)
        names = {name for worker in self._workers.values() for name in worker.logs}
        return {name: self._mean(name) for name in sorted(names)}

    def _mean(self, name: str) -> float:
        pairs = [(w.logs[name], w.samples) for w in self._workers.values() if name in w.logs]
        total = sum(samples for _, samples in pairs)
        if not total:
            return sum(value for value, _ in pairs) / len(pairs)
        return sum(value * samples for value, samples in pairs if samples) / total


class Status:
    """The aggregated events of one epoch, as text."""

    def __init__(self, adds_steps: bool, clock: Clock) -> None:
        self._tally = EpochProgress(adds_steps)
        self._clock = clock
        self._job = JobSummary("")
        self._started = self._first = 0.0  # by the clock: the epoch's start, and its first report of steps
        self._first_step = 0

    def job(self, job: JobSummary) -> None:
        self._job = job

    def begin(self, epoch: int) -> None:
        self._tally.begin(epoch)
        self._started, self._first = self._clock(), 0.0

    def add(self, event: Event) -> bool:
        """Add an event; return whether it changes the status."""
        kind = event.WhichOneof("kind")
        if kind == "progress":
            self._tally.progress(event.rank, event.progress)
        elif kind == "step_end":
            self._tally.step_end(event.step_end)
        else:
            return False
        if not self._first:
            self._first, self._first_step = self._clock(), self._tally.step
        return True

    def seconds(self) -> float:
        """Return the seconds since the epoch began."""
        return self._clock() - self._started

    @property
    def step(self) -> int:
        """The steps that are done in the epoch."""
        return self._tally.step

    @property
    def epoch(self) -> str:
        return f"{self._tally.epoch + 1}/{self._job.epochs}"

    def line(self, speed: str = "", done: int | None = None) -> str:
        """Return the line. `speed`: shown instead of samples/s. `done`: the steps of an epoch that has ended."""
        step, steps = self._tally.step, self._job.steps_per_epoch
        if done is not None:
            step = steps = done
        parts = [
            f"Epoch {self.epoch}",
            " ".join(part for part in (bar(step, steps), f"{step}/{steps}" if steps else f"step {step}") if part),
            speed or rate(self._tally.samples, self.seconds()),
            self._eta(step, steps),
            format_logs(self._tally.logs),
        ]
        return "  ".join(part for part in parts if part)

    def _eta(self, step: int, steps: int) -> str:
        """Estimate from the pace since the first report, as the first step includes compilation."""
        taken, seconds = step - self._first_step, self._clock() - self._first
        if not self._first or taken <= 0 or step >= steps:
            return ""
        return f"ETA {duration((steps - step) * seconds / taken)}"


def bar(step: int, steps: int) -> str:
    """Return `━━━━━━━━────────────`; "" where the number of steps is unknown."""
    if not steps:
        return ""
    done = min(WIDTH, WIDTH * step // steps)
    return "━" * done + "─" * (WIDTH - done)
