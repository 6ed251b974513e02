"""Metrics over all ranks, by their state: the ranks' changes since the last reset are summed.

Sums, counts and confusion matrices are additive, so the result is that of a single machine and never a mean of means.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt import compat
from fdt.keras.variables import assign, tensor_variable
from fdt.patches import Patch, patched
from fdt.typing import Array, Tensor, Variable
from hfdt.worker import step_context as steps
from hfdt.worker.step_context import StepContext

_PARTS = ("metrics", "utils", "ops")
# Files between the caller of a metric's method and `_update_mean`.
_OF_METRICS = (__file__, "/fdt/patches.py", "/tensorflow/python/", *(f"keras/src/{part}/" for part in _PARTS))


@contextlib.contextmanager
def installed(flavor: str) -> Iterator[None]:
    """While the context lasts, let each rank's scalar count in Keras's Mean by the rank's share of the batch.

    In tf_keras, metrics made before keep the method with which they were made.
    """
    with patched([Patch(compat.of(flavor).Mean, "update_state", _update_mean)]):
        yield


def _update_mean(original: Any, self: Any, values: Any, sample_weight: Any = None) -> Any:
    """Update a Mean with a scalar. Without a weight it counts 1; here each rank's counts by its share, 1 in total.

    A weight that is one Python number is the global batch's. Keras 3 passes the static batch size to its per-output
    loss trackers: an int, or None where it is unknown, as with arrays. A local batch may have one where the global
    batch has none, so it is ignored.
    """
    step = steps.current()
    if step is None or not (sample_weight is None or isinstance(sample_weight, (int, float))):
        return original(self, values, sample_weight)
    values = tf.convert_to_tensor(values)
    if values.shape.rank != 0:
        return original(self, values, sample_weight)
    dtype = values.dtype if values.dtype.is_floating else tf.float32
    value = step.over_share(tf.cast(values, dtype) * step.weight(dtype))
    weight = 1 if sample_weight is None or _called_by_keras() else sample_weight
    return original(self, value, step.share(dtype) * weight)


def _called_by_keras() -> bool:
    """Return whether Keras's own code calls the metric whose method runs."""
    frame = sys._getframe(1)
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _OF_METRICS):
        frame = frame.f_back
    return any(part in frame.f_code.co_filename for part in ("/keras/src/", "/tf_keras/src/"))


class HeldMetrics:
    """Metric variables that a rank without samples restores after a step, in the graph."""

    def __init__(self, step: StepContext, variables: list[Any]) -> None:
        self._step = step
        self._variables = [tensor_variable(v) for v in variables]
        self._before = [tf.identity(v) for v in self._variables]

    def restore(self) -> None:
        idle = self._step.mine == 0
        for variable, before in zip(self._variables, self._before, strict=True):
            variable.assign(tf.where(idle, before, variable))


class MetricTotals:
    """The metric variables of a model, summed over ranks."""

    def __init__(self, comm: Any, variables: list[Any]) -> None:
        self._comm = comm
        self._variables: list[Variable] = [tensor_variable(v) for v in variables]
        self._start: list[Tensor] = []
        self._before: list[Tensor] = []

    def started(self) -> None:
        """Record the state after a reset of the model's metrics."""
        self._start = self._read()
        if self._before:
            self.load(self._before)
            self._before = []

    @contextlib.contextmanager
    def beginning_with(self, values: Sequence[Array]) -> Iterator[None]:
        """Let this rank start from `values` after the next reset: its own state before a resumed epoch."""
        self._before = [tf.constant(value) for value in values]
        try:
            yield
        finally:
            self._before = []

    def replace(self, values: Sequence[Array]) -> None:
        """Let `values` be the state over all ranks: that of rank 0, while the others begin as after a reset."""
        self.load([tf.constant(v) for v in values] if self._comm.rank == 0 else self._start)

    def total(self) -> list[Tensor]:
        """Return the state at the last reset plus every rank's change since. A collective."""
        now = self._read()
        start = self._start or [tf.zeros_like(v) for v in now]
        if self._comm.size == 1 or not now:
            return now
        added = self._comm.sum([_minus(n, s) for n, s in zip(now, start, strict=True)], "hfdt.metrics")
        return [_plus(s, a) for s, a in zip(start, added, strict=True)]

    def by_rank(self) -> list[Tensor]:
        """Return every rank's own state, stacked by rank. A collective."""
        rank, size = self._comm.rank, self._comm.size
        now = [tf.cast(v, tf.int32) if v.dtype == tf.bool else v for v in self._read()]
        placed = [tf.stack([v if r == rank else tf.zeros_like(v) for r in range(size)]) for v in now]
        stacked = self._comm.sum(placed, "hfdt.metrics.ranks") if size > 1 and placed else placed
        return [tf.cast(s, v.dtype) for s, v in zip(stacked, self._variables, strict=True)]

    @contextlib.contextmanager
    def loaded(self, values: list[Tensor]) -> Iterator[None]:
        """Assign `values` to the variables while the context lasts."""
        mine = self._read()
        self.load(values)
        try:
            yield
        finally:
            self.load(mine)

    def load(self, values: list[Tensor]) -> None:
        assign(self._variables, values)

    def _read(self) -> list[Tensor]:
        return [tf.identity(v) for v in self._variables]


def metric_objects(model: Any) -> list[Any]:
    """Return the metrics of a model, those within Keras's containers one by one."""
    return [each for metric in getattr(model, "metrics", []) for each in getattr(metric, "metrics", None) or [metric]]


def result_of(metric: Any, name: str) -> Any:
    """Return the metric's result, or the entry `name` of a metric with several; None where it has no such entry."""
    result = metric.result()
    return result.get(name) if isinstance(result, Mapping) else result


def arrays(values: list[Tensor]) -> list[Array]:
    """Return the values as arrays."""
    return [value.numpy() for value in values]


def _minus(now: Tensor, start: Tensor) -> Tensor:
    return tf.cast(now, tf.int32) - tf.cast(start, tf.int32) if now.dtype == tf.bool else now - start


def _plus(start: Tensor, added: Tensor) -> Tensor:
    return tf.logical_or(start, added > 0) if start.dtype == tf.bool else start + added
