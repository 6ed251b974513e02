"""What a worker did in an epoch, for its reports."""

import time
from typing import Any

from fdt.logs import numbers
from fdt.tensors import Array
from fdt.trainable import Trainable


class EpochCounters:
    """What this worker did in an epoch. The metric variables are the model's own; `start`: their values at reset."""

    def __init__(self, trainable: Trainable, first: bool) -> None:
        self._trainable, self._first = trainable, first
        self.reset()

    def reset(self) -> None:
        self._trainable.model.reset_metrics()
        self._start = self._trainable.metric_arrays()
        self.steps = self.samples = 0
        self.busy = 0.0  # seconds
        self.logs: dict[str, Any] = {}
        self.since = time.monotonic()

    def add(self, samples: int, logs: dict[str, Any], steps: int = 1) -> None:
        self.steps += steps
        self.samples += samples
        self.logs = logs

    def counted(self) -> list[Array]:
        """What the metric variables hold now."""
        return self._trainable.metric_arrays()

    def take_back(self, counted: list[Array]) -> None:
        """A step is left out: the metric variables hold again what they did before it."""
        self._trainable.write_metrics(counted)

    def metrics(self) -> list[Array]:
        """What is to be summed over workers: the first worker's values, the others' changes."""
        arrays = self._trainable.metric_arrays()
        return arrays if self._first else [_change(a, s) for a, s in zip(arrays, self._start, strict=True)]

    def floats(self) -> dict[str, float]:
        """Scalar logs, as numbers."""
        return numbers(self.logs)


def _change(now: Array, start: Array) -> Array:
    """What was added; a flag that was raised stays raised when the workers' are added up."""
    return now if now.dtype == bool else now - start
