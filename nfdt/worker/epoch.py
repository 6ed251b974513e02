"""An epoch of a worker: its batches, which are read ahead, and its counters for the reports."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fdt.structure import numbers
from fdt.trainable import Trainable
from fdt.typing import Array


class NoBatch(Exception):
    """The epoch has no batch of the number `args[0]`."""


class BatchReader:
    """One lane's reader of an epoch's batches. It reads one push ahead."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._epoch = self._last = -1
        self._reader: Any = None
        self._asked: dict[tuple[int, int], Future[Any]] = {}  # by epoch and number
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")

    def get(self, epoch: int, indices: Sequence[int], ahead: Sequence[int]) -> list[Any]:
        """Return the batches `indices`, and read `ahead` in the background. Raises NoBatch."""
        keys = [(epoch, index) for index in (*indices, *ahead)]
        asked = {key: self._asked.get(key) or self._thread.submit(self._read, *key) for key in keys}
        self._asked = asked
        return [self._result(key) for key in keys[: len(indices)]]

    def _result(self, key: tuple[int, int]) -> Any:
        try:
            return self._asked[key].result()
        except IndexError:
            raise NoBatch(key[1]) from None

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _read(self, epoch: int, index: int) -> Any:
        if epoch != self._epoch or index <= self._last:  # a reader only moves forward
            self._epoch, self._reader = epoch, self._source.reader(epoch)
        self._last = index
        return self._reader.read(index)


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
        self.logs: Mapping[str, Any] = {}
        self._since: float | None = None

    def begin(self) -> None:
        """Start the clock, unless it runs. Called when the worker has weights for a batch.

        Between the end of an epoch and this call, the client evaluates and runs callbacks.
        """
        if self._since is None:
            self._since = time.monotonic()

    def seconds(self) -> float:
        """Return the seconds since `begin`; 0 without it."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def add(self, samples: int, logs: Mapping[str, Any], steps: int = 1) -> None:
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
