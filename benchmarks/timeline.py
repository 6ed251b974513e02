"""What `--timeline` costs a step of the CNN, in CPU time, so that other load on the machine changes little.

    python benchmarks/timeline.py            # some 12 s of CPU time

Each part is measured alone and often, as the whole is less than the spread of a step: the marks in HFDT's step, the
spans that a worker makes of them and sends, and the client's trace with its file. A step's own time is that of its
forward and backward pass and update, on a batch of one of two ranks.
"""

import os

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}

import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import keras
import tensorflow as tf

from fdt.rpc.session_pb2 import Event
from fdt.timeline import SpanRecorder, Trace
from hfdt.worker.timeline import ROWS, StepTimeline, Watched

sys.path.insert(0, str(harness.SCRIPTS))
import networked

RANKS = 2
TARGET = 0.01
TURNS = 9
NFDT_SPANS = ("input", "gradient", "push", "pull", "queue", "apply")  # of a step: docs/guides/timeline.md


def cpu_us(run: Callable[[], Any], times: int) -> float:
    """Return the CPU time of a call in microseconds, all threads together."""
    before = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - before) / times * 1e6


def least(turn: Callable[[], float]) -> float:
    """Return the least of some turns, the one that other load disturbed least, after one that is not counted."""
    turn()
    turns = [turn() for _ in range(TURNS)]
    harness.console.print(f"  {harness.spread(turns)} us", style="dim")
    return min(turns)


def step_us() -> tuple[float, list[tf.Tensor], tuple[Any, Any]]:
    """Return the CPU time of a rank's step of the CNN, its gradients, and its batch."""
    rows = networked.BATCHES["cnn"] // RANKS
    model, x, y, optimizer = networked.make("cnn", rows)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    batch = tf.constant(x), tf.constant(y)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = loss_of(batch[1], model(batch[0], training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return gradients

    return least(lambda: cpu_us(step, 20)), step(), batch


def marked(timeline: StepTimeline, gradients: list[tf.Tensor], batch: Any) -> Callable[[], Any]:
    """Return a step with the marks of HFDT's, one exchange of all gradients, and no computation."""

    def train(_: Any, element: Any) -> Any:
        return timeline.exchange(lambda tensors, name: list(tensors), gradients, "hfdt.gradient")

    return tf.function(lambda: timeline.step(train)(None, batch))


def marks_us(timeline: StepTimeline, step: Callable[[], Any], gradients: list[tf.Tensor]) -> float:
    """Return the CPU time of a step's marks: the difference to the same step without them."""
    plain = tf.function(lambda: list(gradients))

    def turn() -> float:
        timeline.take()
        return cpu_us(step, ROWS)

    return least(turn) - least(lambda: cpu_us(plain, ROWS))


def worker_us(timeline: StepTimeline, step: Callable[[], Any]) -> tuple[float, list[bytes], int]:
    """Return the CPU time per step of the worker's spans, the messages, and the number of steps in them."""
    sent: list[bytes] = []
    recorder = SpanRecorder("worker 0", lambda event: sent.append(event.SerializeToString()))
    watched = Watched(timeline, lambda step, logs: True, recorder, (0, 0), "callbacks")
    steps = itertools.count(1)

    def turn() -> float:
        us = 0.0
        for _ in range(ROWS):
            step()
            us += cpu_us(lambda: watched.on_batch(next(steps), None), 1)
        return us / ROWS

    us = least(turn)
    watched.finish()
    return us, sent, next(steps) - 1


def client_us(messages: list[bytes]) -> float:
    """Return the CPU time in which the client makes a trace of these messages, and writes it."""
    with tempfile.TemporaryDirectory() as directory:

        def turn() -> None:
            trace = Trace(Path(directory) / "trace.json", print)
            for message in messages:
                trace.event(Event.FromString(message))
            trace.job_end()

        return least(lambda: cpu_us(turn, 1))


def recorded_us(count: int = 20_000) -> float:
    """Return the CPU time of one span of a worker of NFDT, sending included."""
    recorder = SpanRecorder("worker 0", lambda event: event.SerializeToString())
    return least(lambda: cpu_us(lambda: recorder.add("lane 0", "gradient", 1.0, 2.0, epoch=1, step=1), count))


def main() -> int:
    own_us, gradients, batch = step_us()
    timeline = StepTimeline(1, RANKS)
    step = marked(timeline, gradients, batch)
    for_marks = marks_us(timeline, step, gradients)
    for_spans, messages, steps = worker_us(timeline, step)
    spans = sum(len(Event.FromString(message).spans.spans) for message in messages)
    per_span = client_us(messages) / spans
    sent = sum(map(len, messages))
    per_step = spans / steps
    hfdt = for_marks + for_spans + per_step * per_span
    nfdt = len(NFDT_SPANS) * (recorded_us() + per_span)
    rows = [
        ["a rank's step of the CNN", f"{own_us:,.0f}", "", ""],
        ["hfdt: marks", f"{for_marks:.0f}", "", ""],
        ["hfdt: the worker's spans", f"{for_spans:.0f}", f"{per_step:.0f}", f"{sent / steps:.0f}"],
        ["hfdt: the client's trace", f"{per_step * per_span:.0f}", f"{per_step:.0f}", ""],
        ["nfdt: all", f"{nfdt:.0f}", str(len(NFDT_SPANS)), f"{sent / spans * len(NFDT_SPANS):.0f}"],
    ]
    harness.table("CPU time of a step and of --timeline", ["", "CPU us", "spans", "bytes sent"], rows)
    harness.verdict("hfdt: --timeline over a step", [hfdt / own_us], at_most=TARGET)
    harness.verdict("nfdt: --timeline over a step", [nfdt / own_us], at_most=TARGET)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
