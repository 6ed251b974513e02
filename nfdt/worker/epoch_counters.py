"""Counters of a worker's epoch, for its reports."""

import time
from typing import Any

from fdt.structure import numbers
from fdt.trainable import Trainable
from fdt.typing import Array


class EpochCounters:
    """A worker's counts, time and metrics of one epoch. The metric variables are the model's own."""

    def __init__(self, trainable: Trainable, first: bool) -> None:
        self._trainable, self._first = trainable, first
        self.reset()

    def reset(self) -> None:
        """Start a new epoch."""
        self._trainable.model.reset_metrics()
        self._start = self._trainable.metric_arrays()
        self.steps = self.samples = 0
        self.busy = 0.0  # seconds
        self.logs: dict[str, Any] = {}
        self.since = time.monotonic()

    def add(self, samples: int, logs: dict[str, Any], steps: int = 1) -> None:
        """Count `steps` steps of `samples` samples in total."""
        self.steps += steps
        self.samples += samples
        self.logs = logs

    def counted(self) -> list[Array]:
        """Return the current values of the metric variables."""
        return self._trainable.metric_arrays()

    def take_back(self, counted: list[Array]) -> None:
        """Undo a skipped step: restore the metric variables to `counted`."""
        self._trainable.write_metrics(counted)

    def metrics(self) -> list[Array]:
        """Return the arrays to sum over workers: the first worker's values, the others' changes."""
        arrays = self._trainable.metric_arrays()
        return arrays if self._first else [_change(a, s) for a, s in zip(arrays, self._start, strict=True)]

    def floats(self) -> dict[str, float]:
        """Return the scalar logs as numbers."""
        return numbers(self.logs)


def _change(now: Array, start: Array) -> Array:
    """Return the difference. A flag keeps its value: the sum of flags over workers is a logical or."""
    return now if now.dtype == bool else now - start
