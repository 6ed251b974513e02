"""Before a job's first step: do the ranks' slices of a batch add up to what the whole batch gives?

All ranks work out the gradient of the first global batch twice: each its slice, exchanged as in training; and each
the whole, alone. Nothing is applied and all state is put back. What does not add up is tried as a sum; what still
does not is named.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.data import slicing
from fdt.errors import CaptureError
from fdt.keras.variables import tensor_variable
from hfdt import forward
from hfdt import step as steps
from hfdt.comm.solo import SoloComm
from hfdt.exchange import Exchange, StepGroup
from hfdt.metrics import Totals
from hfdt.quieting import without_randomness
from hfdt.rules import allreduce
from hfdt.step import Reading, Step, Tensor, Terms

TOLERANCE, HALF_TOLERANCE = 5e-4, 5e-2  # relative, L2 norm, of all gradients together
# Of metrics and moving statistics: a count may turn on rounding, and what does not add up is far off.
STATE_TOLERANCE = 0.05
NOT_STILLED = "the model draws random numbers that could not be stilled: its loss was not checked"


@dataclass
class Result:
    """What one step leaves behind: gradients, metric states (over all ranks), non-trainable variables."""

    gradients: list[Tensor]
    metrics: list[Tensor]
    forward: list[Tensor]


@dataclass
class Findings:
    """`difference`: relative, of the gradients; NaN when it could not be told."""

    reading: Reading
    difference: float
    notes: list[str]


class Probe:
    """Compares slices with the whole on `whole`, a global batch."""

    def __init__(self, trainable: Any, terms: Terms, whole: Any) -> None:
        self._trainable, self._terms, self._whole, self._rows = trainable, terms, whole, int(slicing.rows(whole))
        self._exchange = Exchange(allreduce.rule())
        self.tolerance = HALF_TOLERANCE if is_half(trainable.model) else TOLERANCE

    def run(self, *, allow_inexact: bool) -> Findings:
        """Raises CaptureError when slices and whole differ, no reading mends it and `allow_inexact` is False."""
        with self._untouched():
            alone = self._alone()
            found = self._compare(Reading.MEAN, alone)
            if found is not None:
                return found
            with without_randomness(self._trainable.flavor.name):
                return self._closer(allow_inexact)

    def _closer(self, allow_inexact: bool) -> Findings:
        """The batch's numbers differ: without dropout and noise, and read as sums?"""
        alone = self._alone()
        if not _fine(self._difference(self._alone(), alone), self.tolerance):
            return Findings(Reading.MEAN, math.nan, [NOT_STILLED])
        for reading in self._readings():
            found = self._compare(reading, alone)
            if found is not None:
                return found
        message = self._named(self._difference(self._sliced(Reading.MEAN), alone))
        if allow_inexact:
            return Findings(Reading.MEAN, math.nan, [message])
        raise CaptureError(f"{message}; `--allow-inexact` trains all the same")

    def _compare(self, reading: Reading, alone: Result) -> Findings | None:
        """What is found when slices, read so, give the whole; None when they do not."""
        sliced = self._sliced(reading)
        difference = self._difference(sliced, alone)
        if not _fine(difference, self.tolerance):
            return None
        return Findings(reading, difference, self._metric_notes(sliced, alone) + self._forward_notes(sliced, alone))

    def _readings(self) -> list[Reading]:
        found = [Reading.MEAN]
        if self._terms.seen_scalar_loss:
            found.append(Reading.LOSS_SUM)
        return found if self._terms.own_step else [*found, Reading.STEP_SUM]

    def _named(self, difference: float) -> str:
        own = self._terms.own_step
        loss = getattr(self._trainable.model, "loss", None)
        name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
        what = f"the loss ({name})" if own else f"{type(self._trainable.model).__name__}.train_step"
        return (
            f"{what} must be a mean or a sum over samples for slices of a batch to add up to the batch. "
            f"Received: gradients that differ by {difference:.2%}"
        )

    # -- one step ------------------------------------------------------------------------------------------------------
    def _sliced(self, reading: Reading) -> Result:
        mine, share = slicing.cut_batch(self._whole, self._terms.comm.rank, self._terms.comm.size)
        terms = replace(self._terms, reading=reading)
        result = self._step(terms, mine, int(share[0]))
        self._terms.seen_scalar_loss |= terms.seen_scalar_loss
        return result

    def _alone(self) -> Result:
        terms = replace(self._terms, comm=SoloComm(), reading=Reading.MEAN, averaged={}, sent_bytes={})
        return self._step(terms, self._whole, self._rows)

    def _step(self, terms: Terms, batch: Any, mine: int) -> Result:
        trainable, model = self._trainable, self._trainable.model
        self._restore()
        model.reset_metrics()
        totals = Totals(terms.comm, trainable.metrics)
        totals.started()
        step = Step(terms, tf.constant([mine, self._rows], tf.int64))
        step.deferred = []
        with contextlib.ExitStack() as stack:
            for optimizer in trainable.flavor.optimizers(model):
                stack.enter_context(trainable.flavor.replace_apply(optimizer, self._exchange.apply))
            stack.enter_context(_unscaled(model.optimizer))
            stack.enter_context(steps.entered(step))
            model.train_step(batch)
            if mine == 0:
                totals.load(totals._start)
            gradients = [
                g for put_off in step.deferred for g in StepGroup(step).mean(put_off.gradient) if g is not None
            ]
            gradients = [tf.convert_to_tensor(g) for g in gradients]
            forward.flush(step)
        changed = [tf.identity(tensor_variable(v)) for v in self._forward_variables()]
        return Result(gradients, totals.total(), changed)

    def _forward_variables(self) -> list[Any]:
        seeds = {id(v) for v in self._trainable.seeds}
        return [v for v in self._trainable.non_trainable if id(v) not in seeds and tensor_variable(v).dtype.is_floating]

    @contextlib.contextmanager
    def _untouched(self) -> Iterator[None]:
        trainable = self._trainable
        kept = [tensor_variable(v) for v in [*trainable.trainable, *trainable.non_trainable, *trainable.metrics]]
        values = [tf.identity(v) for v in kept]
        # These go on, so that a second look draws other numbers.
        seeds = {id(tensor_variable(v)) for v in trainable.seeds}

        def restore(everything: bool = False) -> None:
            for variable, value in zip(kept, values, strict=True):
                if everything or id(variable) not in seeds:
                    variable.assign(value)

        self._restore = restore
        try:
            yield
        finally:
            restore(everything=True)

    # -- comparing -----------------------------------------------------------------------------------------------------
    def _difference(self, one: Result, other: Result) -> float:
        """As rank 0 sees it: ranks must decide alike."""
        mine = relative(one.gradients, other.gradients) if self._terms.comm.rank == 0 else 0.0
        return float(self._terms.comm.sum([tf.constant(mine, tf.float64)], "hfdt.probe")[0])

    def _metric_notes(self, sliced: Result, alone: Result) -> list[str]:
        names = self._metric_names()
        bad = {
            name
            for name, a, b in zip(names, sliced.metrics, alone.metrics, strict=True)
            if not name.startswith("loss") and relative([a], [b]) > STATE_TOLERANCE
        }
        return [
            f"metric {name!r} has a state that does not add up over ranks: its value is approximate"
            for name in sorted(bad)
        ]

    def _metric_names(self) -> list[str]:
        metrics = getattr(self._trainable.model, "metrics", [])
        owners = {id(v): m.name for metric in metrics for m in _inner(metric) for v in m.variables}
        return [owners.get(id(v), "") or str(v.name) for v in self._trainable.metrics]

    def _forward_notes(self, sliced: Result, alone: Result) -> list[str]:
        pairs = zip(self._forward_variables(), sliced.forward, alone.forward, strict=True)
        bad = [getattr(v, "path", v.name) for v, a, b in pairs if relative([a], [b]) > STATE_TOLERANCE]
        if not bad:
            return []
        return [f"{len(bad)} variable(s) that the forward pass changes are averaged over ranks, not exact: {bad[0]}"]


def relative(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """|ours - theirs| / |theirs| over all tensors together; NaN where numbers are not finite."""
    difference = sum(float(np.sum(np.square(_wide(a) - _wide(b)))) for a, b in zip(ours, theirs, strict=True))
    norm = sum(float(np.sum(np.square(_wide(b)))) for b in theirs)
    if not norm:
        return 0.0 if difference == 0 else math.inf if math.isfinite(difference) else math.nan
    return math.sqrt(difference / norm) if math.isfinite(difference + norm) else math.nan


def is_half(model: Any) -> bool:
    """Does any layer compute in half precision?"""
    layers = model._flatten_layers(include_self=True, recursive=True)
    return any(str(getattr(layer, "compute_dtype", "")) in ("float16", "bfloat16") for layer in layers)


def _wide(tensor: Tensor) -> Any:
    return np.asarray(tf.cast(tensor, tf.float64))


def _fine(difference: float, tolerance: float) -> bool:
    """Numbers that are not finite tell nothing, and are no reason to stop: alone they would be no better."""
    return math.isnan(difference) or difference <= tolerance


def _inner(metric: Any) -> list[Any]:
    return getattr(metric, "metrics", None) or [metric]


@contextlib.contextmanager
def _unscaled(optimizer: Any) -> Iterator[None]:
    """Without loss scaling: half-precision training often begins with scales that overflow."""
    if not hasattr(optimizer, "scale_loss"):
        yield
        return
    object.__setattr__(optimizer, "scale_loss", lambda loss: loss)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "scale_loss")
