"""The comparison of Keras's test step on slices of validation batches with that on the whole ones, before training.

The script's losses, metrics and layers run in it. A sum over samples may be 0 in the first batch, so rows from all over
the data are compared too, and larger numbers.
"""

from dataclasses import replace
from typing import Any

import tensorflow as tf

from client_shim.script_code import script_parts
from fdt.data import source
from fdt.keras.variables import call_converted
from fdt.typing import Tensor
from hfdt.collectives.base import SoloComm
from hfdt.exactness.aggregates import agreed, relative
from hfdt.exactness.metrics import MetricTotals
from hfdt.exactness.probe import needs_replica
from hfdt.exactness.probe_rows import few_rows
from hfdt.exactness.trial import COARSE, EXACT, HALF, is_half
from hfdt.exactness.untouched import Untouched, larger, others, without_randomness
from hfdt.worker import step_context as steps
from hfdt.worker.step_context import StepContext, StepTerms


def check_test_step(trainable: Any, terms: StepTerms, row_cost: float, validation: Any) -> None:
    """Compare the test step of slices with that of whole batches. A collective.

    Args:
        trainable: The model with its variables.
        terms: The terms of the job's steps.
        row_cost: The cost of a row of the training step.
        validation: The Source of validation data.

    Raises:
        NeedsReplica: Slices and the whole differ, or the test step assigns a variable of the model.
    """
    first = few_rows(validation.first_batch(), row_cost, terms.comm.size)
    sliced, alone = _TestStep(trainable, terms), None
    if terms.comm.rank == 0:
        alone = _TestStep(trainable, replace(terms, comm=SoloComm(), averaged={}, sent_bytes={}))
    _compare(sliced, alone, first, may_fail=False)
    rows = int(source.rows(first))
    if (spread := getattr(validation, "spread", None)) is not None and validation.samples > rows:
        _compare(sliced, alone, spread(rows), may_fail=True)
    if any(each is not None and each.dtype.is_floating for each in tf.nest.flatten(first)):
        _compare(sliced, alone, larger(first), may_fail=True)


class _TestStep:
    """Keras's test step on local batches, compiled once for batches of one shape."""

    def __init__(self, trainable: Any, terms: StepTerms) -> None:
        self.trainable, self.terms = trainable, terms
        eager = trainable.model.run_eagerly or getattr(terms.comm, "eager_only", False)
        self._run = self._step if eager else tf.function(self._step, autograph=False)

    def __call__(self, batch: Any, share: Tensor) -> list[Tensor]:
        """Return the metrics' states over all ranks. A collective."""
        self.trainable.model.reset_metrics()
        totals = MetricTotals(self.terms.comm, self.trainable.metrics)
        totals.started()
        self._run(batch, share)
        if int(share[0]) == 0:
            totals.load(totals._start)
        return totals.total()

    def _step(self, batch: Any, share: Tensor) -> None:
        flavor = self.trainable.flavor.name
        with steps.entered(StepContext(self.terms, share)), without_randomness(flavor):
            call_converted(flavor, self.trainable.model.test_step, batch)


def _compare(sliced: _TestStep, alone: _TestStep | None, batch: Any, *, may_fail: bool) -> None:
    """Compare a batch. `alone`: on rank 0. `may_fail`: the test step need not compute such a batch."""
    trainable, comm, whole, random, failed = sliced.trainable, sliced.terms.comm, None, False, False
    share = tf.stack([tf.cast(source.rows(batch), tf.int64)] * 2)
    with Untouched(trainable, moved=True) as state:
        if alone is not None:
            try:
                state.restart()
                whole = alone(batch, share)
                state.restart()
                random = relative(alone(batch, share), whole) > EXACT
            except tf.errors.OpError:
                if not may_fail:
                    raise
                failed = True
        if agreed(comm, float(failed)):
            return
        state.restart()
        found = sliced(*source.cut_batch(batch, comm.rank, comm.size))
        assigned = state.changed([*trainable.trainable, *others(trainable)])
    parts = ", ".join(script_parts(trainable.model)[:3])
    if agreed(comm, float(assigned is not None)):
        name = str(getattr(assigned, "name", "?")).split(":")[0]
        raise needs_replica(
            f"validation assigns the variable {name!r}, and the client would not get its last value: {parts}"
        )
    difference = 0.0 if whole is None or random else relative(found, whole)
    if agreed(comm, difference) > (HALF if is_half(trainable.model) else COARSE):
        raise needs_replica(f"losses and metrics of validation do not add up over slices of a batch: {parts}")
