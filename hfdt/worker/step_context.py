"""Where a rank stands inside the step that is being traced (or run): its share of the global batch, and its peers.

Patched Keras functions (losses.py, metrics.py, batchnorm.py, hfdt/exactness/assigned_state.py) look `current()` up;
where there is no step
they do what Keras does.

Weighting, once for all of them. Rank r holds m_r of the batch's M samples; its share is s_r = m_r / M. The exchange
adds weight_r * gradient_r, so what a rank differentiates must satisfy sum_r weight_r * loss_r = loss of the whole
batch. `weight` is the share, except where a script's own step is known to add over samples (Reading.STEP_SUM): 1 there.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf

from hfdt.collectives import Comm

Tensor = Any
Variable = Any


class Reading(Enum):
    """How a scalar is read that a script computed from a slice of the batch; the probe decides."""

    MEAN = "mean over samples"
    LOSS_SUM = "sum over samples, where a loss function returns a scalar"
    STEP_SUM = "sum over samples, all that the script's own train_step differentiates"


class ExchangeInCompiled(Exception):
    """The forward pass must ask other ranks, which XLA cannot do."""


@dataclass
class StepTerms:
    """What holds for every step of a job.

    `averaged`: variables that the forward pass may change, by id. `seen_scalar_loss` and `sent_bytes` (per step, by
    what is exchanged) are filled in by tracing. `waited`: seconds that gradients spent in the exchange are added to it.
    """

    comm: Comm
    reading: Reading = Reading.MEAN
    own_step: bool = True  # the train_step is Keras's
    averaged: Mapping[int, Variable] = field(default_factory=dict)
    may_idle: bool = True  # some rank may have no sample of some batch
    fp16: bool = False
    seen_scalar_loss: bool = False
    sent_bytes: dict[str, int] = field(default_factory=dict)
    waited: Variable | None = None
    guard: Any = None  # a hfdt.worker.nonfinite_guard.Guard, where steps whose gradients are not finite are left out


class StepContext:
    """One step of one rank. `share`: int64 tensor [samples of mine, samples of the global batch], or two ints.

    `alone`: nobody is asked; what the others would have said is taken to be as the slice is.
    """

    def __init__(self, terms: StepTerms, share: Tensor, *, compiled: bool = False, alone: bool = False) -> None:
        self.terms, self.comm, self.compiled, self.alone = terms, terms.comm, compiled, alone
        self.mine, self.total = share[0], share[1]
        self._share = _ratio(self.mine, self.total)
        self._calls = 0
        self.deferred: list[Any] | None = None  # gradients are put here instead of being exchanged
        self.touched: dict[int, Variable] = {}

    def share(self, dtype: Any) -> Tensor:
        return tf.cast(self._share, dtype)

    def weight(self, dtype: Any) -> Tensor:
        """What the exchange multiplies this rank's gradient by; 0 for a rank without samples."""
        if self.terms.reading is Reading.STEP_SUM:
            return tf.cast(self.mine > 0, dtype)
        return self.share(dtype)

    def over_share(self, value: Tensor) -> Tensor:
        """value / share; 0 for a rank without samples. Makes of a rank's addend what the weighting adds up rightly."""
        return tf.math.divide_no_nan(value, self.share(value.dtype))

    def weigh(self, tensor: Tensor, weight: Tensor) -> Tensor:
        """weight * tensor, and 0 rather than NaN where the weight is 0."""
        weight = tf.cast(weight, tensor.dtype)
        if not self.terms.may_idle:
            return tensor * weight
        return tf.math.multiply_no_nan(tensor, weight)

    def sum(self, tensors: Sequence[Tensor], what: str) -> list[Tensor]:
        """Add over ranks, under a name that is the same on every rank: they trace the same code."""
        if self.alone:
            return [self.over_share(t) for t in tensors]
        if self.compiled:
            raise ExchangeInCompiled(what)
        name = f"hfdt.{what}.{self._calls}"
        self._calls += 1
        self.terms.sent_bytes[name] = sum(_nbytes(t) for t in tensors)
        return self.comm.sum(tensors, name)

    def timed_sum(self, tensors: Sequence[Tensor], what: str) -> list[Tensor]:
        """`sum`; what it took from when this rank was ready is added to the terms' `waited`, if there is one."""
        if self.terms.waited is None:
            return self.sum(tensors, what)
        with tf.control_dependencies(tensors):
            ready = tf.timestamp()
        added = self.sum(tensors, what)
        with tf.control_dependencies(added):
            self.terms.waited.assign_add(tf.timestamp() - ready)
        return added


def _ratio(mine: Any, total: Any) -> Any:
    """In float64. Of ints no operations are made, which eagerly take half a millisecond: a fifth of a small step."""
    if isinstance(mine, int):
        return np.float64(mine) / total if total else np.float64("nan")  # as below
    return tf.cast(mine, tf.float64) / tf.cast(total, tf.float64)


_here = threading.local()


def current() -> StepContext | None:
    """The step this thread is tracing, or None."""
    return getattr(_here, "step", None)


@contextlib.contextmanager
def entered(step: StepContext | None) -> Iterator[None]:
    before, _here.step = current(), step
    try:
        yield
    finally:
        _here.step = before


def _nbytes(tensor: Tensor) -> int:
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)
