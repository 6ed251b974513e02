"""A reporter that prints one line per epoch, for `verbose=2`, a pipe or a file."""

import sys
import time
from collections.abc import Callable, Mapping

from fdt.report import JobSummary, Reporter, text
from fdt.rpc.session_pb2 import EpochEnd, Event

Clock = Callable[[], float]


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
        f"{end.steps} step{'s' if end.steps != 1 else ''}" if end.steps else "",
        text.duration(end.seconds),
        text.rate(end.samples, end.seconds),
        text.logs({**logs, **end.extra}),
    ]
    return " - ".join(part for part in parts if part)
