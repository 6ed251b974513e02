"""Reports about a job while it trains and when it ends, the formats of their numbers, and the choice of a display.

Each reporter does one thing with the records. The client's process calls every method from one thread at a time. The
order for one `fit`:

    job -> (epoch_begin -> event* -> epoch_end)* -> job_end     `note`: at any time      `ended`, `close`: at the end

`event` receives each Event of the conversation as it arrives, also those between jobs; a reporter ignores those that it
does not need. `epoch_end` comes after Keras's own `on_epoch_end`, because the `val_*` logs exist only then: a callback
at the end of the list calls it, with the logs that callbacks receive. `job_end` comes however `fit` ends.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdt.rpc.session_pb2 import Event


@dataclass(frozen=True)
class JobSummary:
    """The properties of one `fit` that users want to see. 0 or "" where unknown."""

    job: str
    engine: str = ""  # "hfdt" | "nfdt"
    workers: int = 1
    model: str = ""  # the model's name
    parameters: int = 0  # trainable
    gradient_bytes: int = 0  # of all trainable variables, in their own dtypes
    state_bytes: int = 0  # model and optimizer variables: sent at the start and in each snapshot
    loss: str = ""
    optimizer: str = ""
    data: str = ""  # "arrays" | "graph" | "feed"
    data_bytes: int = 0
    samples: int = 0  # per epoch
    batch_size: int = 0  # the script's global batch
    steps_per_epoch: int = 0
    epochs: int = 1
    initial_epoch: int = 0
    validation: bool = False
    verbose: int = 1  # the script's own: 0 silent, 1 bar, 2 one line per epoch ("auto" is 1)
    options: Mapping[str, str] = field(default_factory=dict)


class Reporter:
    """Receives records and ignores them; a subclass overrides the methods that it needs."""

    def job(self, job: JobSummary) -> None:
        """Handle the start of a `fit`. It follows Ready, when `steps_per_epoch` is known as well as possible."""

    def epoch_begin(self, epoch: int) -> None:
        """Handle the start of epoch `epoch` (from 0, as Keras counts)."""

    def event(self, event: "Event") -> None:
        """Handle one Event of the conversation; `event.rank` is the worker that sent it."""

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Handle the end of `epoch`, after Keras's callbacks; `logs` are the final ones, with `val_*`."""

    def job_end(self) -> None:
        """Handle the end of `fit`, which returned or raised."""

    def training(self, step: int) -> None:
        """Handle a report that `step` steps are trained in a script's own loop, without `fit`. For any thread."""

    def note(self, text: str) -> None:
        """Show the user one line."""

    def ended(self, code: int, error: str) -> None:
        """Handle the exit code of the script or command, with the error's line where there is one."""

    def close(self) -> None:
        """Handle the end of the run."""


RECORDS_VARIABLE = "FDT_RECORDS"  # a further directory for records.jsonl, of the Python program that started the run


class Reporters(Reporter):
    """Several reporters as one. A reporter that raises is removed, and training continues."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = list(reporters)

    def job(self, job: JobSummary) -> None:
        self._each("job", job)

    def epoch_begin(self, epoch: int) -> None:
        self._each("epoch_begin", epoch)

    def event(self, event: "Event") -> None:
        self._each("event", event)

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self._each("epoch_end", epoch, logs)

    def job_end(self) -> None:
        self._each("job_end")

    def training(self, step: int) -> None:
        self._each("training", step)

    def awaits_training(self) -> bool:
        """Return whether a reporter overrides `training`."""
        return any(type(reporter).training is not Reporter.training for reporter in self._reporters)

    def note(self, text: str) -> None:
        self._each("note", text)

    def ended(self, code: int, error: str) -> None:
        self._each("ended", code, error)

    def close(self) -> None:
        self._each("close")

    def _each(self, method: str, *args: object) -> None:
        for reporter in list(self._reporters):
            try:
                getattr(reporter, method)(*args)
            except Exception as error:  # noqa: BLE001  a full disk or a closed pipe must not end the training
                if reporter in self._reporters:
                    self._reporters.remove(reporter)
                    self._each("note", f"{type(reporter).__name__} failed and is no longer used: {error}")


_OWN_LINE = ("staleness_mean", "staleness_median", "staleness_max", "simulated_s")


def format_number(value: float) -> str:
    """Return `value` as Keras's progress bar writes it: 0.1234, or 1.2345e-05 when it is small."""
    return f"{value:.4f}" if abs(value) > 1e-3 or value == 0 else f"{value:.4e}"


def format_logs(values: Mapping[str, Any]) -> str:
    """Return `accuracy: 0.8812 - loss: 0.3211`, followed by simulated time and mean staleness where given."""
    shown = [f"{name}: {_value(value)}" for name, value in values.items() if name not in _OWN_LINE]
    if "simulated_s" in values:
        shown.append(f"simulated: {duration(values['simulated_s'])}")
    if "staleness_mean" in values:
        shown.append(f"staleness: {values['staleness_mean']:.2f}")
    return " - ".join(shown)


def quantity(number: int, noun: str) -> str:
    """Return `1 step`, `2,000 steps`, `3 batches`."""
    ending = "" if number == 1 else "es" if noun.endswith(("tch", "s", "x")) else "s"
    return f"{number:,} {noun}{ending}"


def duration(seconds: float) -> str:
    """Return `0.4s`, `42s`, `3:07`, `1:02:03`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if whole < 60:
        return f"{whole}s"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def rate(samples: float, seconds: float) -> str:
    """Return `12,345 samples/s` with at least three digits; "" without samples or time."""
    if seconds <= 0 or samples <= 0:
        return ""
    per_second = samples / seconds
    return f"{per_second:,.0f} samples/s" if per_second >= 100 else f"{per_second:.3g} samples/s"


def nbytes(count: float) -> str:
    """Return `512 bytes`, `1.2 kB`, `3.4 MB`: powers of 1000."""
    if count < 1000:
        return f"{count:.0f} bytes"
    units = ["TB", "GB", "MB", "kB"]
    count /= 1000
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        units.pop()
    return f"{count:.3g} {units[-1]}"


def milliseconds(seconds: float) -> str:
    """Return `12.3 ms`."""
    return f"{seconds * 1e3:.3g} ms"


def _value(value: Any) -> str:
    try:
        return format_number(float(value))
    except (TypeError, ValueError):  # a metric that returns an array
        return " ".join(str(value).split())


class Screen(Reporter):
    """Shows progress on stdout, where Keras prints, and notes on stderr, a line each.

    The client prints the output of worker 0 (Output), as if the script had printed it.

    Attributes:
        display: Makes the display of `verbose=1` where there is no terminal, from `adds_steps`; None: lines.
    """

    display: "Callable[[bool], Reporter] | None" = None

    def __init__(self, name: str, *, adds_steps: bool, quiet: bool = False) -> None:
        self._name, self._adds_steps, self._quiet = name, adds_steps, quiet
        self._display: Reporter = _Silent()

    def job(self, job: JobSummary) -> None:
        self._display = self._chosen(0 if self._quiet else job.verbose)
        self._display.job(job)

    def epoch_begin(self, epoch: int) -> None:
        self._display.epoch_begin(epoch)

    def event(self, event: "Event") -> None:
        self._display.event(event)
        if event.WhichOneof("kind") == "failed" and not event.failed.users_code:
            self._show_end_of_log(event.failed.detail)
        elif event.HasField("fault"):
            self.note(event.fault.message)
        elif event.HasField("membership"):
            self.note(event.membership.message)

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self._display.epoch_end(epoch, logs)

    def job_end(self) -> None:
        self._display.job_end()
        self._display = _Silent()

    def note(self, text: str) -> None:
        if not self._quiet:
            print(f"{self._name}: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._display.close()

    def _show_end_of_log(self, detail: str) -> None:
        """Print the end of a log as evidence; the command prints a one-line error at its end."""
        self._display.job_end()
        for line in detail.splitlines():
            print(f"  | {line}", file=sys.stderr)

    def _chosen(self, verbose: int) -> Reporter:
        if verbose == 0:
            return _Silent()
        from fdt.report.progress import Bar, Plain

        terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        if verbose == 1 and self.display is not None:
            return self.display(self._adds_steps)
        return Bar(self._adds_steps) if verbose == 1 and terminal else Plain()


class _Silent(Reporter):
    """The display for verbose=0."""
