"""The display of progress: a bar on a terminal, replaced by each epoch's final line, or only these lines."""

import os
import shutil
import sys
import time
from collections.abc import Mapping
from threading import RLock
from types import TracebackType
from typing import Any, TextIO

from fdt.report import JobSummary, Reporter, duration, format_logs, quantity, rate
from fdt.report.status import Clock, Status
from fdt.rpc.session_pb2 import EpochEnd, Event


class Plain(Reporter):
    """Prints to the current `sys.stdout`, as Keras does."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self._epochs = 1
        self._end = EpochEnd()

    def job(self, job: JobSummary) -> None:
        self._epochs = job.epochs

    def epoch_begin(self, epoch: int) -> None:
        self._started = self._clock()
        self._end = EpochEnd()

    def event(self, event: Event) -> None:
        if event.WhichOneof("kind") == "epoch_end":
            self._end = event.epoch_end
            self._end.seconds = self._end.seconds or self._clock() - self._started

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        print(line(epoch, self._epochs, self._end, logs), file=sys.stdout, flush=True)


def line(epoch: int, epochs: int, end: EpochEnd, logs: Mapping[str, float]) -> str:
    """`Epoch 3/10 - 938 steps - 5.1s - 11,764 samples/s - accuracy: 0.8812 - loss: 0.3211 - val_loss: 0.3500`."""
    parts = [
        f"Epoch {epoch + 1}/{epochs}",
        quantity(end.steps, "step") if end.steps else "",
        duration(end.seconds),
        rate(end.samples, end.seconds),
        format_logs({**logs, **end.extra}),
    ]
    return " - ".join(part for part in parts if part)


REDRAW_S = 0.05


class Bar(Reporter):
    """Draws the bar. During an epoch, it replaces `sys.stdout` and `sys.stderr`, to keep other output readable."""

    def __init__(self, adds_steps: bool, clock: Clock = time.perf_counter) -> None:
        self._status = Status(adds_steps, clock)
        self._clock = clock
        self._line = StatusLine(sys.stdout)
        self._job = JobSummary("")
        self._end = EpochEnd()
        self._drawn = 0.0  # time of the last drawing, by the clock

    def job(self, job: JobSummary) -> None:
        self._job = job
        self._status.job(job)

    def epoch_begin(self, epoch: int) -> None:
        self._status.begin(epoch)
        self._end = EpochEnd()
        self._drawn = 0.0
        self._line.__enter__()
        self._line.show(self._status.line("starting"))

    def event(self, event: Event) -> None:
        if event.HasField("epoch_end"):
            self._finish(event.epoch_end)
        elif self._status.add(event) and self._clock() - self._drawn >= REDRAW_S:
            self._drawn = self._clock()
            self._line.show(self._status.line())

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self._line.__exit__(None, None, None)
        print(line(epoch, self._job.epochs, self._end, logs), flush=True)

    def job_end(self) -> None:
        self._line.__exit__(None, None, None)

    close = job_end

    def _finish(self, end: EpochEnd) -> None:
        self._end = end
        self._end.seconds = end.seconds or self._status.seconds()
        if self._job.validation:
            self._line.show(self._status.line("validating", end.steps))
        else:
            self._line.__exit__(None, None, None)


class StatusLine:
    """A line at the bottom of a terminal. Within its context, the process's other output appears above it, complete."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = RLock()
        self._shown = 0  # columns
        self._inside_a_line = False  # the script printed without a newline: the status line waits
        self._aside: dict[str, _Beside] = {}

    def __enter__(self) -> "StatusLine":
        if not self._aside:
            self._stream = sys.stdout
            self._inside_a_line = False
            self._aside = {name: _Beside(self, getattr(sys, name)) for name in ("stdout", "stderr") if _terminal(name)}
            vars(sys).update(self._aside)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self._aside:
            return
        self.clear()
        if self._inside_a_line:
            self._write("\n")
            self._inside_a_line = False
        for name, beside in self._aside.items():
            if getattr(sys, name) is beside:  # else the script has replaced it
                setattr(sys, name, beside.stream)
        self._aside = {}

    def show(self, line: str) -> None:
        """Replace the line by `line`, cut to the terminal's width."""
        with self._lock:
            if not self._aside or self._inside_a_line:
                return
            line = self._encodable(line)[: shutil.get_terminal_size().columns - 1]
            self._write("\r" + self._coloured(line) + " " * (self._shown - len(line)))
            self._shown = max(len(line), 1)

    def clear(self) -> None:
        """Remove the line."""
        with self._lock:
            if self._shown:
                self._write("\r" + " " * self._shown + "\r")
                self._shown = 0

    def beside(self, stream: TextIO, written: str) -> int:
        """Write the script's own output."""
        with self._lock:
            self.clear()
            count = stream.write(written)
            if written:
                self._inside_a_line = not written.endswith("\n")
            return count

    def _write(self, written: str) -> None:
        self._stream.write(written)
        self._stream.flush()

    def _encodable(self, line: str) -> str:
        encoding = getattr(self._stream, "encoding", None) or "ascii"
        try:
            line.encode(encoding)
        except UnicodeError:
            return line.replace("━", "=").replace("─", ".").encode(encoding, "replace").decode(encoding)
        return line

    def _coloured(self, line: str) -> str:
        if "━" not in line or os.environ.get("NO_COLOR"):
            return line
        start, end = line.index("━"), line.rindex("━") + 1
        return f"{line[:start]}\x1b[32m{line[start:end]}\x1b[0m{line[end:]}"


class _Beside:
    """A standard stream that writes above the status line."""

    def __init__(self, status: StatusLine, stream: TextIO) -> None:
        self.stream = stream
        self._status = status

    def write(self, written: str) -> int:
        return self._status.beside(self.stream, written)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _terminal(name: str) -> bool:
    stream = getattr(sys, name)
    return stream is not None and stream.isatty()
