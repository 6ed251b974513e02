"""The comparison of a script's test step on slices of validation batches with that on the whole ones, before training.

A sum over samples may be 0 in the first batch. So rows from all over the data are compared too, and larger numbers.
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
    _compare(trainable, terms, first, may_fail=False)
    if (spread := getattr(validation, "spread", None)) is not None:
        _compare(trainable, terms, spread(int(source.rows(first))), may_fail=True)
    _compare(trainable, terms, larger(first), may_fail=True)


def _compare(trainable: Any, terms: StepTerms, batch: Any, *, may_fail: bool) -> None:
    """Compare a batch. `may_fail`: the test step need not compute it, as validation may not reach it."""
    comm, alone, random, failed = terms.comm, None, False, False
    with Untouched(trainable, moved=True) as state:
        if comm.rank == 0:
            try:
                alone, again = (_alone(trainable, terms, batch, state) for _ in range(2))
                random = relative(again, alone) > EXACT
            except tf.errors.OpError:
                failed = may_fail
                if not may_fail:
                    raise
        if agreed(comm, float(failed)):
            return
        state.restart()
        sliced = _states(trainable, terms, *source.cut_batch(batch, comm.rank, comm.size))
        assigned = state.changed([*trainable.trainable, *others(trainable)])
    parts = ", ".join(script_parts(trainable.model)[:3])
    if agreed(comm, float(assigned is not None)):
        name = str(getattr(assigned, "name", "?")).split(":")[0]
        raise needs_replica(
            f"validation assigns the variable {name!r}, and the client would not get its last value: {parts}"
        )
    difference = 0.0 if alone is None or random else relative(sliced, alone)
    if agreed(comm, difference) > (HALF if is_half(trainable.model) else COARSE):
        raise needs_replica(f"losses and metrics of validation do not add up over slices of a batch: {parts}")


def _alone(trainable: Any, terms: StepTerms, batch: Any, state: Untouched) -> list[Tensor]:
    """Return the metrics' states of the whole batch on this rank."""
    state.restart()
    total = tf.cast(source.rows(batch), tf.int64)
    solo = replace(terms, comm=SoloComm(), averaged={}, sent_bytes={})
    return _states(trainable, solo, batch, tf.stack([total, total]))


def _states(trainable: Any, terms: StepTerms, batch: Any, share: Tensor) -> list[Tensor]:
    """Run Keras's test step on a local batch; return the metrics' states over all ranks. A collective."""
    model, flavor = trainable.model, trainable.flavor.name
    model.reset_metrics()
    totals = MetricTotals(terms.comm, trainable.metrics)
    totals.started()

    def step() -> None:
        with steps.entered(StepContext(terms, share)), without_randomness(flavor):
            call_converted(flavor, model.test_step, batch)

    eager = model.run_eagerly or getattr(terms.comm, "eager_only", False)
    (step if eager else tf.function(step, autograph=False))()
    if int(share[0]) == 0:
        totals.load(totals._start)
    return totals.total()
