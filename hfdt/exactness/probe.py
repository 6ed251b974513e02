"""The probe, which tests before training whether the ranks' results of a batch's slices add up to the whole batch's.

It runs again when state has changed. Rank 0 computes the gradient of some rows of the first batch alone; all ranks
compute their slices and exchange gradients as in training. Both are computed in float64 (float64.py): there a model's
rounding errors are below 1e-12, and a larger difference is not rounding. No update is applied and all state is
restored. Results that do not add up are tried as sums; if that fails too, the cause is named.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.errors import NeedsReplica
from fdt.report import quantity
from fdt.typing import Tensor
from hfdt.collectives import Comm
from hfdt.exactness import culprit
from hfdt.exactness.probe_rows import few_rows
from hfdt.exactness.trial import COARSE, Result, StepTrial, Untouched, forward_variables
from hfdt.worker.step_context import Reading, StepTerms

# For metrics and moving statistics: rounding may change a count, while a state that does not add up is far off.
STATE_TOLERANCE = 0.05
NOT_STILLED = "the loss was not checked: the model draws random numbers that could not be fixed"
NOT_FINITE = "the loss was not checked: the first batch's gradients are not finite"
REMEDY = "`--capture replica` divides every step exactly, `--allow-inexact` trains nevertheless"


@dataclass
class ProbeResult:
    """The result of a probe.

    `difference`: of the gradients, relative; NaN where unknown. `finite`: the gradients were finite.
    """

    reading: Reading
    difference: float
    notes: list[str]
    finite: bool = True


class Probe:
    """The comparison of slices with a global batch, `whole`.

    `by_script`: the script made an operation of the step. `gradient_pass`: the pass that reads scalars as means.
    """

    def __init__(self, trainable: Any, terms: StepTerms, whole: Any) -> None:
        self._trainable, self._terms = trainable, terms
        self._trial = StepTrial(trainable, replace(terms, reading=Reading.MEAN), whole)
        self.gradient_pass = self._trial.gradient_pass
        self._batch = few_rows(whole, self._trial.row_cost, terms.comm.size)
        self._tolerance, self.by_script = self._trial.tolerance, self._trial.by_script

    def run(self, *, allow_inexact: bool) -> ProbeResult:
        """Raise NeedsReplica where slices and the whole differ, no reading corrects it and `allow_inexact` is False."""
        for moved in (True, False):
            with Untouched(self._trainable, moved=moved) as state:
                found = self._found(state, allow_inexact)
            if found.finite:
                return found
        return replace(found, notes=[NOT_FINITE])

    def _found(self, state: Untouched, allow_inexact: bool) -> ProbeResult:
        alone = self._alone(state)
        found = self._compare(state, self._trial, alone)
        if found is None and self._tolerance >= COARSE:
            self._trial.replace_randomness()
            alone = self._alone(state)
            found = self._compare(state, self._trial, alone)
        if found is not None:
            return found
        if not _fine(self._difference(self._alone(state), alone), self._tolerance):
            return ProbeResult(Reading.MEAN, math.nan, [NOT_STILLED])
        for reading in self._other_readings():
            trial = StepTrial(self._trainable, replace(self._terms, reading=reading), self._batch)
            trial.replace_randomness()
            found = self._compare(state, trial, alone)
            if found is not None:
                self._trial = trial
                return found
        message = self._named(state, self._difference(self._sliced(state, self._trial), alone))
        if allow_inexact:
            return ProbeResult(Reading.MEAN, math.nan, [message])
        raise NeedsReplica(f"{message}; {REMEDY}", message, trained=False)

    def _compare(self, state: Untouched, trial: StepTrial, alone: Result | None) -> ProbeResult | None:
        """Return the result where slices, under the reading of `trial`, give the whole; None where they do not."""
        sliced = self._sliced(state, trial)
        difference = self._difference(sliced, alone)
        if not _fine(difference, self._tolerance):
            return None
        notes = self._notes(sliced, alone) if alone is not None else []
        return ProbeResult(trial.terms.reading, difference, notes, finite=not math.isnan(difference))

    def _other_readings(self) -> list[Reading]:
        readings = [Reading.MEAN]
        readings += [Reading.LOSS_SUM] if self._trial.terms.seen_scalar_loss else []
        readings += [] if self._terms.own_step else [Reading.STEP_SUM]
        return [reading for reading in readings if reading is not self._trial.terms.reading]

    def _named(self, state: Untouched, difference: float) -> str:
        reason = culprit.find(self._trainable, self._trial.terms, self._batch, state, self._tolerance)
        return f"{reason}: gradients differ by {difference:.2g} of their size"

    def _sliced(self, state: Untouched, trial: StepTrial) -> Result:
        state.restart()
        return trial.sliced(self._batch)

    def _alone(self, state: Untouched) -> Result | None:
        """Run the whole on rank 0 only: ranks of one host share its cores."""
        if self._terms.comm.rank:
            return None
        state.restart()
        return self._trial.alone(self._batch)

    # -- comparing -----------------------------------------------------------------------------------------------------
    def _difference(self, one: Result | None, other: Result | None) -> float:
        mine = 0.0 if one is None or other is None else relative(one.gradients, other.gradients)
        return agreed(self._terms.comm, mine)

    def _notes(self, sliced: Result, alone: Result) -> list[str]:
        return self._metric_notes(sliced, alone) + self._forward_notes(sliced, alone)

    def _metric_notes(self, sliced: Result, alone: Result) -> list[str]:
        names = self._metric_names()
        bad = {
            name
            for name, a, b in zip(names, sliced.metrics, alone.metrics, strict=True)
            if not name.startswith("loss") and relative([a], [b]) > STATE_TOLERANCE
        }
        return [
            f"metric {name!r} has a state that cannot be summed over ranks: its value is approximate"
            for name in sorted(bad)
        ]

    def _metric_names(self) -> list[str]:
        metrics = getattr(self._trainable.model, "metrics", [])
        owners = {id(v): m.name for metric in metrics for m in _inner(metric) for v in m.variables}
        return [owners.get(id(v), "") or str(v.name) for v in self._trainable.metrics]

    def _forward_notes(self, sliced: Result, alone: Result) -> list[str]:
        pairs = zip(forward_variables(self._trainable), sliced.forward, alone.forward, strict=True)
        bad = [getattr(v, "path", v.name) for v, a, b in pairs if relative([a], [b]) > STATE_TOLERANCE]
        if not bad:
            return []
        return [
            f"averaged over ranks, not exact: {quantity(len(bad), 'variable')} of the forward pass, such as {bad[0]}"
        ]


def agreed(comm: Comm, number: float) -> float:
    """Return rank 0's number, so that all ranks decide alike. A collective."""
    mine = number if comm.rank == 0 else 0.0
    return float(comm.sum([tf.constant(mine, tf.float64)], "hfdt.probe")[0])


def relative(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return |ours - theirs| / |theirs| over all tensors together; NaN where numbers are not finite."""
    difference = sum(float(np.sum(np.square(_wide(a) - _wide(b)))) for a, b in zip(ours, theirs, strict=True))
    norm = sum(float(np.sum(np.square(_wide(b)))) for b in theirs)
    if not norm:
        return 0.0 if difference == 0 else math.inf if math.isfinite(difference) else math.nan
    return math.sqrt(difference / norm) if math.isfinite(difference + norm) else math.nan


def _wide(tensor: Tensor) -> Any:
    return np.asarray(tf.cast(tensor, tf.float64))


def _fine(difference: float, tolerance: float) -> bool:
    """Return whether the difference is tolerable. NaN is: without HFDT the gradients would not be finite either."""
    return math.isnan(difference) or difference <= tolerance


def _inner(metric: Any) -> list[Any]:
    return getattr(metric, "metrics", None) or [metric]
