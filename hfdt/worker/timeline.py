"""The spans of HFDT's steps (--timeline), from times that the step's own graph takes.

A step's marks: its batch is there; the gradients of a bucket are there; their sums are there; all is done. Each is a
timestamp between the operations before it and those after it: without the latter, a busy executor takes it too late.
The last operation of a step writes them as a row of a variable, which is read every ROWS steps.

Forward and backward pass are one span: with `jit_compile` both are one program, and without it a mark between them
would make the backward pass wait for all of the forward pass. A single rank has no marks, because XLA compiles its
whole step, and XLA has no timestamps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fdt.timeline import ALL_REDUCE, SpanRecorder, trace_time
from fdt.typing import Tensor
from hfdt.collectives.base import Collective
from hfdt.worker.progress import OnBatch

ROWS = 512
PAUSE_S = 1e-4  # shorter work between two steps counts as input
STEP, COMPUTE, EXCHANGE = "step", "forward and backward", "exchange"
BATCH_THERE, DONE = "batch", "done"


class StepTimeline:
    """The marks of a program's steps.

    Args:
        at_once: Steps in one execution of Keras's train function, at most.
        ranks: Number of ranks.
    """

    def __init__(self, at_once: int, ranks: int) -> None:
        self.at_once, self.solo = at_once, ranks == 1
        self._tables: dict[tuple[str, ...], tuple[Any, Any]] = {}  # marks -> their rows, and the number of rows
        self._marks: dict[str, Tensor] | None = None  # of the step that is traced
        self._read: list[tuple[float, ...]] = []

    # -- tracing ---------------------------------------------------------------------------------------------------
    def step(self, train: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement of train_step that marks the steps of `train`, which is one too."""

        def run(original: Any, element: Any) -> Any:
            before, graph = _operations(), _graph()
            self._marks = {}
            try:
                flat = self.mark(BATCH_THERE, tf.nest.flatten(element, expand_composites=True))
                logs = train(original, tf.nest.pack_sequence_as(element, flat, expand_composites=True))
                self.mark(DONE, [], [op for op in _operations()[len(before) :] if op.op_def.is_stateful])
                self._write({name: t for name, t in self._marks.items() if getattr(t, "graph", None) is graph})
            finally:
                self._marks = None
            return logs

        return train if self.solo else run

    def exchange(self, collective: Collective, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        """Call `collective`; mark when the gradients are there, and when their sums are."""
        added = collective(self.mark(f"ready {name}", tensors), name)
        return self.mark(f"added {name}", added)

    def mark(self, name: str, tensors: Sequence[Any], after: Sequence[Any] = ()) -> list[Any]:
        """Mark the time at which `tensors` and `after` are there; return tensors that are there later.

        Outside a step that is traced, return `tensors`.
        """
        if self._marks is None:
            return list(tensors)
        with tf.device("CPU:0"), tf.control_dependencies([t for t in (*tensors, *after) if t is not None]):
            self._marks[name] = tf.timestamp()
        if tf.executing_eagerly():
            return list(tensors)
        with tf.control_dependencies([self._marks[name]]):
            return [None if t is None else tf.identity(t) for t in tensors]

    def _write(self, marks: dict[str, Tensor]) -> None:
        names = tuple(marks)
        if names not in self._tables:
            with tf.init_scope(), tf.device("CPU:0"):
                zeros = tf.zeros([ROWS + self.at_once, len(names)], tf.float64)
                self._tables[names] = tf.Variable(zeros, trainable=False), tf.Variable(0, trainable=False)
        rows, count = self._tables[names]
        with tf.device("CPU:0"):
            rows.scatter_nd_update([[count]], [tf.stack(list(marks.values()))])
            count.assign_add(1)

    # -- training --------------------------------------------------------------------------------------------------
    def take(self) -> list[dict[str, float]]:
        """Return the marks of the steps since the last call, in their order."""
        steps = []
        for names, (rows, count) in self._tables.items():
            steps += [dict(zip(names, row, strict=True)) for row in rows[: int(count)].numpy().tolist()]
            count.assign(0)
        return sorted(steps, key=lambda marks: marks[BATCH_THERE])


class Watched:
    """A wrapper of a step callback that records the spans of an epoch, every ROWS steps and at the epoch's end.

    Args:
        timeline: The marks of the steps.
        on_batch: The wrapped callback.
        recorder: Receives the spans.
        at: The epoch, and the steps of it that are done.
        pause: The name of the span in which the wrapped callback runs.
    """

    def __init__(
        self, timeline: StepTimeline, on_batch: OnBatch, recorder: SpanRecorder, at: tuple[int, int], pause: str
    ) -> None:
        self._timeline, self._on_batch, self._recorder, self._pause = timeline, on_batch, recorder, pause
        self._epoch, self._step = at[0] + 1, at[1]
        self._pauses: list[tuple[float, float]] = []
        self._calls = 0
        timeline.take()  # steps of an epoch that was not finished
        self._at = trace_time()

    def on_batch(self, step: int, logs: Any) -> bool:
        """Call the wrapped callback and return its result; record spans where they are due."""
        start = trace_time()
        more = self._on_batch(step, logs)
        end = trace_time()
        if self._timeline.solo:
            self._step += self._timeline.at_once
            self._until(start, STEP)
            self._until(end, self._pause)
        elif end - start > PAUSE_S:
            self._pauses.append((start, end))
        self._calls += 1
        if self._calls * self._timeline.at_once >= ROWS:
            self._add()
        return more

    def finish(self) -> None:
        """Add the spans of the last steps, and send them."""
        self._add()
        self._recorder.flush()

    def _add(self) -> None:
        self._calls = 0
        for marks in self._timeline.take():
            self._step += 1
            while self._pauses and self._pauses[0][1] <= marks[BATCH_THERE]:
                start, end = self._pauses.pop(0)
                self._until(start, "input")
                self._until(end, self._pause)
            self._until(marks[BATCH_THERE], "input")
            self._add_step(marks)

    def _add_step(self, marks: dict[str, float]) -> None:
        ready = {name[len("ready ") :]: at for name, at in marks.items() if name.startswith("ready ")}
        if ready:
            self._until(max(ready.values()), COMPUTE)
            self._until(max(marks[f"added {name}"] for name in ready), EXCHANGE)
        self._until(marks[DONE], "update" if ready else STEP)
        for name, at in ready.items():
            thread = name.removeprefix("hfdt.").replace(".", " ")
            which = {"epoch": self._epoch, "step": self._step}
            self._recorder.add(thread, ALL_REDUCE, at, marks[f"added {name}"], **which)

    def _until(self, at: float, name: str) -> None:
        """Add a span of the main thread that ends at `at`. The clock may have been set back meanwhile."""
        start, self._at = self._at, max(at, self._at)
        self._recorder.add("main", name, start, self._at, epoch=self._epoch, step=self._step)


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _operations() -> list[Any]:
    """Return the operations of the graph that is traced. Eager ones have run."""
    graph = _graph()
    return [] if graph is None else graph.get_operations()
