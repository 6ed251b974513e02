"""The probe, which tests before training whether the ranks' results of a batch's slices add up to the whole batch's.

It runs again when state has changed. Rank 0 computes the gradient of some rows of the first batch alone; all ranks
compute their slices and exchange gradients as in training. Both are computed in float64 (float64.py): there a model's
rounding errors are below 1e-12, and a larger difference is not rounding. No update is applied and all state is
restored. Results that do not add up are tried as sums; if that fails too, the cause is named.

The same two runs leave metrics' states, assigned variables and the numbers of a script's own step; aggregates.py
compares them. A step that reads counters is compared again as of later steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from client_shim.script_code import script_parts
from fdt.data import source
from fdt.errors import NeedsReplica
from hfdt.exactness import adjoints, culprit
from hfdt.exactness.aggregates import Aggregates, agreed, fine, relative
from hfdt.exactness.probe_rows import few_rows, short_batch, uneven
from hfdt.exactness.script_lines import failed_line
from hfdt.exactness.trial import COARSE, EXACT, HALF, ROUNDED, Result, StepTrial
from hfdt.exactness.untouched import Untouched, larger
from hfdt.worker.step_context import LogSources, Reading, StepTerms

NOT_STILLED = "the loss was not checked: the model draws random numbers that could not be fixed"
NOT_FINITE = "the loss was not checked: the first batch's gradients are not finite"
REMEDY = "`--capture replica` divides every step exactly, `--allow-inexact` trains nevertheless"


@dataclass
class ProbeResult:
    """The result of a probe.

    `difference`: of the gradients, relative; NaN where unknown. `finite`: the gradients were finite. `summed`: names of
    the step's numbers that are sums over samples.
    """

    reading: Reading
    difference: float
    notes: list[str]
    finite: bool = True
    summed: frozenset[str] = frozenset()


class Probe:
    """The comparison of slices with a global batch, `whole`.

    `by_script`: whether the script made an operation of the step. `gradient_pass`: the pass of forward and backward
    computation that takes a scalar loss for a mean. `last`: the rows of the epoch's last batch, where it is smaller.
    `spread`: returns a number of rows from all over the data; None where they cannot be chosen.
    """

    def __init__(
        self, trainable: Any, terms: StepTerms, whole: Any, last: int = 0, spread: Callable[[int], Any] | None = None
    ) -> None:
        self._trainable, self._terms = trainable, terms
        self._trial = StepTrial(trainable, replace(terms, reading=Reading.MEAN), whole)
        self.gradient_pass = self._trial.gradient_pass
        self._batch = few_rows(whole, self._trial.row_cost, terms.comm.size)
        self._spread = None if spread is None else spread(int(source.rows(self._batch)))
        self._short = short_batch(whole, last, self._trial.row_cost, terms.comm.size)
        self._tolerance, self.by_script = self._trial.tolerance, self._trial.by_script
        self.row_cost = self._trial.row_cost
        self.aggregates = Aggregates(trainable, self._tolerance)

    def note_log_sources(self, sources: LogSources) -> None:
        """Record what the step's numbers are computed from."""
        self._terms.note_log_sources(sources)
        self._trial.terms.note_log_sources(sources)

    def failed_line(self, error: Exception) -> str:
        """Return the script's line that made the operation which an error of the step names; "" if unknown."""
        traced = getattr(self.gradient_pass, "traced", None)
        return "" if traced is None else failed_line(traced.graph, error)

    def run(self, *, allow_inexact: bool, exact: bool = True) -> ProbeResult:
        """Compare slices with the whole.

        Args:
            allow_inexact: Return a difference as a note.
            exact: The algorithm gives one machine's numbers; otherwise only gradients have to add up.

        Raises:
            NeedsReplica: Slices and the whole differ, and no reading of the losses corrects it.
        """
        self.aggregates.restart(self._terms.log_sources)
        for moved in (True, False):
            found = self._at(moved, 0, allow_inexact)
            if found.finite:
                break
        else:
            return replace(found, notes=[NOT_FINITE])
        if self.by_script and self._spread is not None and not allow_inexact:
            self._check_spread(moved, found)
        if exact and not allow_inexact:  # first: later steps move counters to a million
            self._check_others(found.difference)
            self.aggregates.refuse_unproven()
        for later in self._trial.later:
            if self._runs(moved, later) and _reads_otherwise(self._at(moved, later, allow_inexact), found):
                raise needs_replica("the loss is a mean over samples at one step and a sum at another")
        others = [] if self._terms.own_logs else self._trial.gradient_pass.other_logs
        notes = self.aggregates.faults(others, int(source.rows(self._batch)))
        if notes and exact and not allow_inexact:
            raise needs_replica(notes[0])
        return replace(found, notes=found.notes + notes, summed=self.aggregates.summed)

    def _at(self, moved: bool, later: int, allow_inexact: bool) -> ProbeResult:
        with self._start(moved, later) as state:
            return self._found(state, allow_inexact)

    def _runs(self, moved: bool, later: int) -> bool:
        """Return whether the whole batch's step runs `later` steps on: a counter may be an index. A collective."""
        with self._start(moved, later) as state:
            return self._tried(state)[0]

    def _tried(self, state: Untouched, batch: Any = None) -> tuple[bool, Result | None]:
        """Return whether the step can compute a whole batch, and on rank 0 its Result. A collective."""
        failed, alone = 0.0, None
        try:
            alone = self._alone(state, batch)
        except tf.errors.OpError:
            failed = 1.0
        return not agreed(self._terms.comm, failed), alone

    def _start(self, moved: bool, later: int, *, distant: bool = False) -> Untouched:
        held = () if self._terms.own_step else self._trainable.optimizer
        counts = self._trial.counts if later else ()
        return Untouched(self._trainable, moved=moved, held=held, later=counts, by=later, distant=distant)

    def _check_spread(self, moved: bool, first: ProbeResult) -> None:
        """Compare rows from all over the data: a label, a missing value or a flag may be in no row of the first batch.

        Raises:
            NeedsReplica: Slices and the whole differ there, or add up by another reading than the first batch's.
        """
        before = self._batch, self._trial
        self._batch = self._spread
        try:  # a step may not compute rows that training does not reach
            otherwise = self._runs(moved, 0) and _reads_otherwise(self._at(moved, 0, False), first)
        finally:
            self._batch, self._trial = before
        if otherwise:
            raise needs_replica("the loss is a mean over samples in the first batch and a sum over rows of others")

    def _check_others(self, first: float) -> None:
        """Compare other batches than the first, whose `first` is the difference.

        A term may be silent in the first batch: a sum over samples of what exceeds a limit, beside a mean. So inputs
        and variables are larger: inputs of other signs, too, of the same signs where the step cannot compute those, or
        the variables alone. This needs float64. The last batch may have fewer rows, and so slices of other sizes. Texts
        and ragged rows may all be of one length, so that padding to the longest row does not show.

        Raises:
            NeedsReplica: Slices and the whole differ there.
        """
        if self._tolerance == EXACT and self.by_script:
            batches = larger(self._batch), larger(self._batch, signs=True), self._batch
            tried = (self._difference_of(batch, distant=True) for batch in batches)
            difference = next((each for each in tried if not math.isnan(each)), math.nan)
            self._require(difference, ROUNDED, "larger numbers", "have a sum over samples beside a mean")
        if self._tolerance >= COARSE:
            self._trial.replace_randomness()
        bound = ROUNDED if self._tolerance == EXACT else HALF
        rows = f"the {0 if self._short is None else int(source.rows(self._short))} rows of the last one"
        for batch, where, why in (
            (self._short if self.by_script else None, rows, "depend on the number of rows"),
            (uneven(self._batch), "rows of other lengths", "depend on the longest row of a batch"),
        ):
            if batch is not None and not math.isnan(first):
                self._require(self._difference_of(batch, distant=False), bound, where, why)

    def _require(self, difference: float, bound: float, where: str, why: str) -> None:
        if not fine(difference, bound):
            parts = ", ".join(script_parts(self._trainable.model)[:3]) or "the model"
            raise needs_replica(
                f"the gradients of a batch's slices add up for the first batch, but not for {where}: {parts} may {why}"
            )

    def _difference_of(self, batch: Any, *, distant: bool) -> float:
        """Compare a batch; return the difference of gradients, NaN where the step cannot compute it. A collective."""
        with self._start(True, 0, distant=distant) as state:
            computed, alone = self._tried(state, batch)
            if not computed:
                return math.nan
            sliced = self._sliced(state, self._trial, batch)
            self.aggregates.compare(self._terms.comm, self._trial.held, sliced, alone, state)
            return self._difference(sliced, alone)

    def _found(self, state: Untouched, allow_inexact: bool) -> ProbeResult:
        alone = self._alone(state)
        found = self._compare(state, self._trial, alone)
        if found is None and self._tolerance >= COARSE:
            self._trial.replace_randomness()
            alone = self._alone(state)
            found = self._compare(state, self._trial, alone)
        if found is not None:
            return found
        if not fine(self._difference(self._alone(state), alone), self._tolerance):
            return ProbeResult(Reading.MEAN, math.nan, [NOT_STILLED])
        for reading in self._other_readings():
            trial = StepTrial(self._trainable, replace(self._terms, reading=reading), self._batch)
            trial.replace_randomness()
            found = self._compare(state, trial, alone)
            if found is not None:
                self._trial = trial
                return found
        if not allow_inexact:
            raise needs_replica(self._named(state, alone))
        return ProbeResult(Reading.MEAN, math.nan, [self._named(state, alone)])

    def _compare(self, state: Untouched, trial: StepTrial, alone: Result | None) -> ProbeResult | None:
        """Return the result where slices, under the reading of `trial`, give the whole; None where they do not."""
        sliced = self._sliced(state, trial)
        difference = self._difference(sliced, alone)
        if not fine(difference, self._tolerance) or self._sum_among_means(trial, sliced, alone):
            return None
        self.aggregates.compare(self._terms.comm, trial.held, sliced, alone, state)
        return ProbeResult(trial.terms.reading, difference, [], finite=not math.isnan(difference))

    def _sum_among_means(self, trial: StepTrial, sliced: Result, alone: Result | None) -> str:
        """Return the first line whose sum over samples `trial` takes for a mean; "" if none. A collective."""
        mine = 0 if alone is None else adjoints.first_misread(sliced.adjoints, alone.adjoints, self._tolerance)
        return ["", *trial.added][int(agreed(self._terms.comm, float(mine)))]

    def _other_readings(self) -> list[Reading]:
        readings = [Reading.MEAN, *[Reading.LOSS_SUM] * self._trial.terms.seen_scalar_loss]
        readings += [] if self._terms.own_step else [Reading.STEP_SUM]
        return [reading for reading in readings if reading is not self._trial.terms.reading]

    def _named(self, state: Untouched, alone: Result | None) -> str:
        sliced = self._sliced(state, self._trial)
        if fine(difference := self._difference(sliced, alone), self._tolerance):
            line = self._sum_among_means(self._trial, sliced, alone)
            return f"the loss is a mean over samples, but the sum at {line} is not"
        reason = culprit.find(self._trainable, self._trial.terms, self._batch, state, self._tolerance)
        return f"{reason}: gradients differ by {difference:.2g} of their size"

    def _sliced(self, state: Untouched, trial: StepTrial, batch: Any = None) -> Result:
        state.restart()
        return trial.sliced(self._batch if batch is None else batch)

    def _alone(self, state: Untouched, batch: Any = None) -> Result | None:
        """Run the whole on rank 0 only: ranks of one host share its cores."""
        if self._terms.comm.rank:
            return None
        state.restart()
        return self._trial.alone(self._batch if batch is None else batch)

    def _difference(self, one: Result | None, other: Result | None) -> float:
        mine = 0.0 if one is None or other is None else relative(one.gradients, other.gradients)
        return agreed(self._terms.comm, mine)


def needs_replica(message: str) -> NeedsReplica:
    """Return the error of a step that cannot be divided, before the first update."""
    return NeedsReplica(f"{message}; {REMEDY}", message, trained=False)


def _reads_otherwise(found: ProbeResult, first: ProbeResult) -> bool:
    """Return whether the losses of two comparisons are read differently; one without finite gradients says nothing."""
    return found.reading is not first.reading and found.finite and not math.isnan(found.difference)
