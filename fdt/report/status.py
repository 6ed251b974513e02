"""The line that says how an epoch stands: `Epoch 3/10  ━━━━────  51/128  11,764 samples/s  ETA 3.1s  loss: 0.3211`."""

from fdt.report import JobSummary, text
from fdt.report.epoch_progress import EpochProgress
from fdt.report.plain import Clock
from fdt.rpc.session_pb2 import Event

WIDTH = 20  # of the bar, in characters


class Status:
    """What the events of one epoch add up to, in words."""

    def __init__(self, adds_steps: bool, clock: Clock) -> None:
        self._tally = EpochProgress(adds_steps)
        self._clock = clock
        self._job = JobSummary("")
        self._started = self._first = 0.0  # clock: the epoch began, its first steps came
        self._first_step = 0

    def job(self, job: JobSummary) -> None:
        self._job = job

    def begin(self, epoch: int) -> None:
        self._tally.begin(epoch)
        self._started, self._first = self._clock(), 0.0

    def add(self, event: Event) -> bool:
        """Whether there is anything new in it."""
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
        """Since the epoch began."""
        return self._clock() - self._started

    @property
    def epoch(self) -> str:
        return f"{self._tally.epoch + 1}/{self._job.epochs}"

    def line(self, word: str = "", done: int | None = None) -> str:
        """`word`: in the place of samples/s. `done`: steps of an epoch that is through."""
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
        """From the pace since the first report: the first step compiles, and says nothing of the others."""
        taken, seconds = step - self._first_step, self._clock() - self._first
        if not self._first or taken <= 0 or step >= steps:
            return ""
        return f"ETA {text.duration((steps - step) * seconds / taken)}"


def bar(step: int, steps: int) -> str:
    """`━━━━━━━━────────────`; nothing where the number of steps is not known."""
    if not steps:
        return ""
    done = min(WIDTH, WIDTH * step // steps)
    return "━" * done + "─" * (WIDTH - done)
