"""The step context: a rank's part of the global batch, and its peers, while a step is traced or run.

Patched Keras functions (hfdt/exactness: losses, metrics, batchnorm, assigned_state) call `current()`.
Without a step they behave as in Keras.

All of them weight alike. Rank r holds m_r of the batch's M samples; its share is s_r = m_r / M. The exchange sums
weight_r * gradient_r, so a rank must differentiate a loss_r with sum_r weight_r * loss_r = loss of the global batch.
The weight equals the share, except where a script's own step is known to sum over samples (Reading.STEP_SUM): then it
is 1.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.ops import nbytes
from fdt.typing import Tensor, Variable
from hfdt.collectives.base import Collective, Comm

AUTO, DEFAULT_BUCKET_MB = "auto", 4


def bucket_bytes(options: Mapping[str, str]) -> int:
    """Return the size of a bucket that a job's options name; the default where none is chosen yet."""
    asked = options.get("bucket_mb", AUTO)
    return round((DEFAULT_BUCKET_MB if asked == AUTO else float(asked)) * 2**20)


class Reading(Enum):
    """The meaning of a scalar that a script computed from a local batch; the probe determines it."""

    MEAN = "mean over samples"
    LOSS_SUM = "sum over samples, where a loss function returns a scalar"
    STEP_SUM = "sum over samples, all that the script's own train_step differentiates"


@dataclass(frozen=True)
class LogSources:
    """The sources of the numbers that a script's own train_step returns, by name.

    Attributes:
        plain: Numbers that are computed without the state of a metric.
        fixed: Those of `plain` that are computed without the batch.
        metrics: Numbers that are one metric's result, with its index in `metric_objects`.
        mixed: Numbers that are computed from metrics' states in another way.
        summed: Those of `plain` that are sums over samples; the probe finds them. The others are means.
    """

    plain: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    metrics: Mapping[str, int] = field(default_factory=dict)
    mixed: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()

    def whole(self, parts: Sequence[tuple[dict[str, Any], int]]) -> dict[str, Any]:
        """Return the numbers of all parts of a batch: sums and means of plain ones, else those of the last part.

        Args:
            parts: The numbers of each part, and its samples; a part of 0 samples does not count.
        """
        logs, samples = dict(parts[-1][0]), sum(count for _, count in parts)
        for name in self.plain & logs.keys() if samples else ():
            counted = [(tf.cast(numbers[name], tf.float64), count) for numbers, count in parts if count]
            logs[name] = tf.add_n([v * (1.0 if name in self.summed else count / samples) for v, count in counted])
        return logs


class ExchangeInCompiled(Exception):
    """Raised where a forward pass that XLA compiles needs other ranks."""


@dataclass
class StepTerms:
    """The terms that hold for every step of a job.

    Attributes:
        averaged: Variables that the forward pass may assign, by id.
        bucket_bytes: Size at which a bucket of gradients is sent; 0 sends all gradients at once.
        seen_scalar_loss: Tracing has seen a loss function that returns a scalar.
        sent_bytes: Bytes of a step by name of the exchange, as if all were all-reduces; filled in by tracing.
        log_sources: What the step's numbers are computed from (row_dependence.py, probe.py).
        sparse: Ids of the variables whose gradients are IndexedSlices; filled in by the probe.
        alike: Ids of those of them whose indices are the same on every rank; filled in by the probe.
        waited: Accumulates the seconds that gradients spent in the exchange; None until training starts.
    """

    comm: Comm
    reading: Reading = Reading.MEAN
    own_step: bool = True  # the train_step is Keras's
    own_logs: bool = True  # the step's logs are Keras's: the results of metrics
    averaged: Mapping[int, Variable] = field(default_factory=dict)
    may_idle: bool = True  # some rank may have no sample of some batch
    bucket_bytes: int = DEFAULT_BUCKET_MB << 20
    seen_scalar_loss: bool = False
    sent_bytes: dict[str, int] = field(default_factory=dict)
    log_sources: LogSources = LogSources()
    sparse: set[int] = field(default_factory=set)
    alike: set[int] = field(default_factory=set)
    waited: Variable | None = None
    compression: Any = None  # a hfdt.worker.compression.GradientCompression, where gradients are compressed
    timeline: Any = None  # a hfdt.worker.timeline.StepTimeline, with --timeline
    guard: Any = None  # a hfdt.worker.nonfinite_guard.Guard, where steps with non-finite gradients are skipped

    def begin_training(self, waited: Variable, guard: Any, *, may_idle: bool) -> None:
        """Set the terms that training has and the probe has not."""
        self.waited, self.guard, self.may_idle = waited, guard, may_idle

    def settle(self, bucket_bytes: int, compression: Any) -> None:
        """Set what options that are `auto` have become."""
        self.bucket_bytes, self.compression = bucket_bytes, compression

    def allow_idle(self) -> None:
        """Let ranks be without samples from now on."""
        self.may_idle = True

    def change_reading(self, reading: Reading) -> None:
        """Read the losses of later traces as `reading`."""
        self.reading = reading

    def note_log_sources(self, sources: LogSources) -> None:
        """Record what the step's numbers are computed from."""
        self.log_sources = sources

    def note_scalar_loss(self) -> None:
        """Record that a loss function has returned a scalar."""
        self.seen_scalar_loss = True


class StepContext:
    """One step of one rank.

    Args:
        terms: The terms of the job's steps.
        share: [samples of this rank, samples of the global batch]: an int64 tensor, or two ints.
        compiled: XLA compiles the step, so `sum` raises ExchangeInCompiled.
        alone: Exchange nothing; other ranks are assumed to be like this one.
        deferred: A list to which gradients are appended instead of being exchanged.
    """

    def __init__(
        self,
        terms: StepTerms,
        share: Tensor,
        *,
        compiled: bool = False,
        alone: bool = False,
        deferred: list[Any] | None = None,
    ) -> None:
        self.terms, self.comm, self.compiled, self.alone = terms, terms.comm, compiled, alone
        self.mine, self.total = share[0], share[1]
        self._share = _ratio(self.mine, self.total)
        self._calls = 0
        self.deferred = deferred
        self.touched: dict[int, Variable] = {}  # averaged variables assigned since the last `take_touched`, by id
        self.written: dict[int, str] = {}  # where variables are assigned, by id, in a step whose updates are deferred

    def go_on_behind(self, before: "StepContext", sent_bytes: Mapping[str, int]) -> None:
        """Continue a step whose first part was traced apart, in the context `before`, and sends `sent_bytes`."""
        self._calls, self.touched, self.written = before._calls, dict(before.touched), dict(before.written)
        self.terms.sent_bytes.update(sent_bytes)

    def share(self, dtype: Any) -> Tensor:
        return tf.cast(self._share, dtype)

    def weight(self, dtype: Any) -> Tensor:
        """Return the factor of this rank's gradient in the exchange; 0 for a rank without samples."""
        if self.terms.reading is Reading.STEP_SUM:
            return tf.cast(self.mine > 0, dtype)
        return self.share(dtype)

    def own(self, tensor: Tensor) -> Tensor:
        """Return `tensor`, or zeros on a rank without samples, which computes on a copied row."""
        return tf.where(self.mine > 0, tensor, tf.zeros_like(tensor))

    def take_touched(self) -> list[Variable]:
        """Return the variables assigned since the last call, in an order that is the same on every rank."""
        taken, self.touched = list(self.touched.values()), {}
        return taken

    def over_share(self, value: Tensor) -> Tensor:
        """Return value / share, whose weighted sum over ranks is the values' sum; 0 for a rank without samples."""
        return tf.math.divide_no_nan(value, self.share(value.dtype))

    def weigh(self, tensor: Tensor, weight: Tensor) -> Tensor:
        """Return weight * tensor, with 0 instead of NaN where the weight is 0."""
        weight = tf.cast(weight, tensor.dtype)
        if not self.terms.may_idle:
            return tensor * weight
        return tf.math.multiply_no_nan(tensor, weight)

    def sum(self, tensors: Sequence[Tensor], what: str) -> list[Tensor]:
        """Sum over ranks, under a name that is the same on every rank because all ranks trace the same code."""
        if self.alone:
            return [self.over_share(t) for t in tensors]
        return self._exchange(self.comm.sum, tensors, what, sum(map(nbytes, tensors)))

    def reduce_scatter(self, tensors: Sequence[Tensor], what: str) -> list[Tensor]:
        """Sum vectors over ranks and return this rank's part of each (Comm.reduce_scatter)."""
        return self._exchange(self.comm.reduce_scatter, tensors, what, sum(map(nbytes, tensors)) // 2)

    def all_gather(self, tensors: Sequence[Tensor], what: str) -> list[Tensor]:
        """Concatenate vectors over ranks (Comm.all_gather)."""
        return self._exchange(self.comm.all_gather, tensors, what, sum(map(nbytes, tensors)) * self.comm.size // 2)

    def _exchange(self, collective: Collective, tensors: Sequence[Tensor], what: str, sent: int) -> list[Tensor]:
        """Call `collective`, which sends as much as an all-reduce of `sent` bytes."""
        if self.compiled:
            raise ExchangeInCompiled(what)
        name = f"hfdt.{what}.{self._calls}"
        self._calls += 1
        self.terms.sent_bytes[name] = sent
        if self.terms.timeline is None or what != "gradient":
            return collective(tensors, name)
        added: list[Tensor] = self.terms.timeline.exchange(collective, tensors, name)
        return added

    def timed(self, tensors: Sequence[Tensor], exchange: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Return `exchange()`, and add the seconds since this rank had all `tensors` to the terms' `waited`, if set.

        No exchange waits for the measurement: those of some of the tensors begin before this rank has the others.
        """
        if self.terms.waited is None:
            return exchange()
        with tf.control_dependencies(tensors):
            ready = tf.timestamp()
        found = exchange()
        with tf.control_dependencies(found):
            self.terms.waited.assign_add(tf.timestamp() - ready)
        return found


def _ratio(mine: Any, total: Any) -> Any:
    """Return mine / total in float64, for ints without TensorFlow operations.

    Eager operations take half a millisecond, a fifth of a small step.
    """
    if isinstance(mine, int):
        return np.float64(mine) / total if total else np.float64("nan")  # as the division of tensors below
    return tf.cast(mine, tf.float64) / tf.cast(total, tf.float64)


_here = threading.local()


def current() -> StepContext | None:
    """Return the step that this thread is tracing, or None."""
    return getattr(_here, "step", None)


@contextlib.contextmanager
def entered(step: StepContext | None) -> Iterator[None]:
    """Make `step` the current step of this thread while the context lasts."""
    before, _here.step = current(), step
    try:
        yield
    finally:
        _here.step = before
