"""--timeline FILE: the spans that a process of a run records, and the trace of all of them, written by the client.

The trace is JSON in Chrome's Trace Event Format, which chrome://tracing and ui.perfetto.dev open. Times are those of
the wall clock of each host.
"""

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fdt.errors import UserError
from fdt.report import JobSummary, Reporter
from fdt.security import replacing

if TYPE_CHECKING:
    from fdt.rpc.session_pb2 import Event

BATCH = 4096  # spans in one message
LIMIT = 1_000_000  # spans in one file, some 150 MB; viewers become slow beyond it
CLOCK_S = 0.001  # a larger difference between two hosts' clocks is reported
INPUT, COMPUTE, EXCHANGE, WAITING, OTHER = "input", "compute", "exchange", "waiting", "reports"
PURPOSES = {  # of the spans on a worker's main thread or lane
    "input": INPUT,
    "forward and backward": COMPUTE,
    "update": COMPUTE,
    "step": COMPUTE,
    "gradient": COMPUTE,
    "exchange": EXCHANGE,
    "push": EXCHANGE,
    "pull": EXCHANGE,
    "wait for an epoch": WAITING,
    "callbacks": WAITING,
    "validation": "validation",
}
ALL_REDUCE = "all-reduce"  # a span that all ranks have, and that ends on none before it has begun on all
trace_time = time.time  # the time of the trace: seconds of this host's wall clock, which other hosts have, too


class TraceSpan(NamedTuple):
    """A time in which one thread of a process did one thing, by the wall clock. `epoch`, `step`: from 1; 0: unknown."""

    process: str
    thread: str
    name: str
    start: float
    end: float
    epoch: int = 0
    step: int = 0


class SpanRecorder:
    """The spans of one process. Its methods may be called by any thread.

    Args:
        process: Its name in the trace.
        send: Sends an event to the engine. It fills in the event's job.
    """

    def __init__(self, process: str, send: "Callable[[Event], None]") -> None:
        from fdt.rpc.session_pb2 import Spans

        self._spans, self._send, self._lock = Spans(process=process), send, threading.Lock()

    def add(self, thread: str, name: str, start: float, end: float, *, epoch: int = 0, step: int = 0) -> None:
        """Add a span of `thread` from `start` to `end` (trace_time())."""
        with self._lock:
            self._spans.spans.add(thread=thread, name=name, start=start, end=end, epoch=epoch, step=step)
            full = len(self._spans.spans) >= BATCH
        if full:
            self.flush()

    @contextlib.contextmanager
    def span(self, thread: str, name: str, epoch: int) -> Iterator[None]:
        """Add a span of the time in this context, and send it."""
        start = trace_time()
        yield
        self.add(thread, name, start, trace_time(), epoch=epoch)
        self.flush()

    def send(self, event: "Event") -> None:
        """Send `event`; the spans before the end of an epoch are sent first, so that they reach the client."""
        if event.HasField("epoch_end"):
            self.flush()
        self._send(event)

    def flush(self) -> None:
        """Send the spans that are not sent yet."""
        from fdt.rpc.session_pb2 import Event

        with self._lock:
            event = Event(spans=self._spans)
            del self._spans.spans[:]
        if event.spans.spans:
            self._send(event)


class Trace(Reporter):
    """Writes the trace at the end of each `fit`; the file is replaced as a whole.

    Args:
        path: The file.
        note: Shows the user one line.
        clock: The wall clock.

    Raises:
        UserError: The file cannot be written.
    """

    def __init__(self, path: Path, note: Callable[[str], None], clock: Callable[[], float] = trace_time) -> None:
        self._path, self._note, self._clock = path.resolve(), note, clock
        self._spans: list[TraceSpan] = []
        self._begun = 0  # number of spans that `_divide` has seen
        self._left_out, self._difference = 0, 0.0
        self._job = JobSummary("")
        self._at, self._epoch, self._validates = clock(), 0, False
        try:
            self._write()
        except OSError as error:
            raise UserError(f"--timeline cannot be written: {error}") from None

    def job(self, job: JobSummary) -> None:
        self._job = job

    def epoch_begin(self, epoch: int) -> None:
        self._epoch, self._at, self._validates = epoch + 1, self._clock(), self._job.validation

    def event(self, event: "Event") -> None:
        if event.HasField("spans"):
            process = event.spans.process
            for s in event.spans.spans:
                self._add(TraceSpan(process, s.thread, s.name, s.start, max(s.start, s.end), s.epoch, s.step))
        elif event.HasField("epoch_end"):
            self._client("training")
        elif event.HasField("evaluated"):
            self._client("validation")
            self._validates = False  # until the next epoch
        elif event.HasField("fault"):
            self._divide()  # the ranks that follow repeat steps

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self._client("validation and callbacks" if self._validates else "callbacks")

    def job_end(self) -> None:
        self._divide()
        self._write()
        if self._left_out:
            self._note(f"--timeline has the first {LIMIT:,} spans; {self._left_out:,} later ones are left out")
        if self._difference > CLOCK_S:
            self._note(
                f"--timeline: the clocks of the hosts differ by {self._difference * 1000:.0f} ms or more, and so do "
                "the times of their workers; synchronise the clocks by NTP"
            )

    def _client(self, name: str) -> None:
        start, self._at = self._at, self._clock()
        self._add(TraceSpan("client", "fit", name, start, max(start, self._at), self._epoch))

    def _add(self, span: TraceSpan) -> None:
        if len(self._spans) < LIMIT:
            self._spans.append(span)
        else:
            self._left_out += 1

    def _divide(self) -> None:
        """Divide each new all-reduce into the wait for the last rank and the transfer."""
        new = self._spans[self._begun :]
        last: dict[Any, float] = {}
        for span in new:
            if span.name == ALL_REDUCE:
                last[_which(span)] = max(last.get(_which(span), span.start), span.start)
        del self._spans[self._begun :]
        for span in new:
            if span.name != ALL_REDUCE:
                self._spans.append(span)
                continue
            self._difference = max(self._difference, last[_which(span)] - span.end)
            middle = min(last[_which(span)], span.end)
            self._spans += [span._replace(name="wait", end=middle), span._replace(name="transfer", start=middle)]
        self._begun = len(self._spans)

    def _write(self) -> None:
        about = {"clock": "wall clock of each host", "clocks_differ_by_s": round(self._difference, 6)}
        about |= {"seconds": seconds_by_purpose(self._spans)}
        rest = f'"displayTimeUnit": "ms", "otherData": {json.dumps(about)}'
        with replacing(self._path) as written, open(written, "x", encoding="utf-8") as file:
            file.write('{"traceEvents": [')
            file.writelines(f"{',' if number else ''}\n{text}" for number, text in enumerate(_events(self._spans)))
            file.write(f"\n], {rest}}}")


def seconds_by_purpose(spans: list[TraceSpan]) -> dict[str, dict[str, float]]:
    """Return how many seconds each worker spent for what: input, compute, exchange, waiting, reports.

    Of an exchange, the time until the last rank had its gradients counts as waiting.
    """
    waits: dict[tuple[str, int, int], float] = {}
    for span in spans:
        if span.name == "wait":
            key = span.process, span.epoch, span.step
            waits[key] = max(waits.get(key, span.end), span.end)
    found: dict[str, dict[str, float]] = {}
    for process, thread, name, start, end, epoch, step in spans:
        if process.startswith("worker ") and not thread.startswith("gradient "):
            sums, purpose = found.setdefault(process, {}), PURPOSES.get(name, OTHER)
            waited = min(max(0.0, waits.get((process, epoch, step), start) - start), end - start)
            if purpose == EXCHANGE and waited:
                sums[WAITING] = sums.get(WAITING, 0.0) + waited
                start += waited
            sums[purpose] = sums.get(purpose, 0.0) + end - start
    return {process: {name: round(s, 6) for name, s in sums.items()} for process, sums in sorted(found.items())}


def _which(span: TraceSpan) -> tuple[str, int, int]:
    return span.thread, span.epoch, span.step


def _events(spans: list[TraceSpan]) -> Iterator[str]:
    """Yield the trace's events as JSON: the names of processes and threads, then the spans in whole microseconds."""
    zero = min((span.start for span in spans), default=0.0)
    processes = {name: pid for pid, name in enumerate(sorted({span.process for span in spans}, key=_order), 1)}
    names = sorted({(span.process, span.thread) for span in spans}, key=lambda name: tuple(map(_order, name)))
    threads = {name: tid for tid, name in enumerate(names, 1)}
    for name, pid in processes.items():
        yield json.dumps({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        yield json.dumps({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}})
    for (process, thread), tid in threads.items():
        yield json.dumps(
            {"ph": "M", "name": "thread_name", "pid": processes[process], "tid": tid, "args": {"name": thread}}
        )
    quoted = functools.cache(json.dumps)
    for process, thread, name, start, end, epoch, step in spans:  # formatted, as json.dumps takes three times as long
        first, last = round((start - zero) * 1e6), round((end - zero) * 1e6)
        args = ", ".join(f'"{key}": {count}' for key, count in (("epoch", epoch), ("step", step)) if count)
        yield (
            f'{{"ph": "X", "name": {quoted(name)}, "pid": {processes[process]}, "tid": {threads[process, thread]}, '
            f'"ts": {first}, "dur": {last - first}, "args": {{{args}}}}}'
        )


def _order(name: str) -> list[Any]:
    """Return a key that sorts "worker 2" before "worker 10"."""
    return [int(part) if part.isdigit() else part for part in name.split()]
