"""The status line of an epoch: `Epoch 3/10  ━━━━────  51/128  11,764 samples/s  ETA 3.1s  loss: 0.3211`."""

from fdt.report import JobSummary, text
from fdt.report.epoch_progress import EpochProgress
from fdt.report.plain import Clock
from fdt.rpc.session_pb2 import Event

WIDTH = 20  # characters of the bar


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
    def epoch(self) -> str:
        return f"{self._tally.epoch + 1}/{self._job.epochs}"

    def line(self, word: str = "", done: int | None = None) -> str:
        """Return the line. `word`: shown instead of samples/s. `done`: the steps of an epoch that has ended."""
        step, steps = self._tally.step, self._job.steps_per_epoch
        if done is not None:
            step = steps = done
        parts = [
            f"Epoch {self.epoch}",
            " ".join(part for part in (bar(step, steps), f"{step}/{steps}" if steps else f"step {step}") if part),
            word or text.rate(self._tally.samples, self.seconds()),
            self._eta(step, steps),
            text.logs(self._tally.logs),
        ]
        return "  ".join(part for part in parts if part)

    def _eta(self, step: int, steps: int) -> str:
        """Estimate from the pace since the first report, as the first step includes compilation."""
        taken, seconds = step - self._first_step, self._clock() - self._first
        if not self._first or taken <= 0 or step >= steps:
            return ""
        return f"ETA {text.duration((steps - step) * seconds / taken)}"


def bar(step: int, steps: int) -> str:
    """Return `━━━━━━━━────────────`; "" where the number of steps is unknown."""
    if not steps:
        return ""
    done = min(WIDTH, WIDTH * step // steps)
    return "━" * done + "─" * (WIDTH - done)
