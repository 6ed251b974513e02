"""Aggregates: whether a step's metrics, assigned variables and returned numbers add up over slices of a batch.

Metrics' states are summed over ranks and assigned variables averaged. A number that a script's own train_step returns
is a mean or a sum over samples; the reading that gives the whole batch's number in every run is taken.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.script_code import of_library
from fdt.keras.variables import tensor_variable
from fdt.typing import Tensor
from hfdt.collectives import Comm
from hfdt.exactness.culprit import place_of
from hfdt.exactness.metrics import metric_objects
from hfdt.exactness.trial import OVER_RANKS
from hfdt.exactness.untouched import Untouched
from hfdt.worker.step_context import LogSources

_MEAN, _SUM = 1, 2
# Relative, as states are rounded to float32 where the step is computed in float64: of values that each rank computes
# alike, and of a result against a number that may be of another function.
_FLOAT32, _SAME = 2e-6, 1e-3
# A count of Keras's metrics may change by a rounded prediction, while a state that does not add up is far off.
_COUNTS = 0.05


class Aggregates:
    """The judgement of what a step leaves, over all runs of a probe.

    Args:
        trainable: The model with its variables.
        tolerance: The relative difference that rounding may cause.

    Attributes:
        summed: Names of the step's numbers that are sums over samples.
    """

    def __init__(self, trainable: Any, tolerance: float) -> None:
        self._trainable, self._tolerance = trainable, max(tolerance, _FLOAT32)
        self._unproven: frozenset[int] = frozenset()
        self.restart(LogSources())

    def restart(self, sources: LogSources) -> None:
        """Begin the runs of a probe of a step whose numbers come from `sources`."""
        self._sources, self._faults = sources, dict[str, None]()
        self._sizes: dict[int, float] = {}  # the largest norm of each state of the whole, by its variable's id
        self._readings: dict[str, int] = {}
        self._silent: dict[int, str | None] = {}  # the message of each unproven variable; None after it has changed

    def note_unproven(self, variables: frozenset[int]) -> None:
        """Record `RowDependence.unproven`: a comparison must find that these variables change."""
        self._unproven = variables

    def compare(self, comm: Comm, held: list[tuple[Any, str]], sliced: Any, alone: Any, state: Untouched) -> None:
        """Compare two Results (trial.py). A collective: all ranks judge alike.

        Args:
            comm: The ranks.
            held: The assigned variables, and the line that assigns each.
            sliced: The Result of slices.
            alone: The Result of the whole; None except on rank 0.
            state: The context of the step of slices, which has run last.
        """
        messages = [
            *(_message_of_metric(*owner) for owner in self._owners()),
            *(_message_of_variable(*each) for each in held),
            *(f"{self._step(n)} from a metric's state, and it is not that metric's result" for n in sliced.results),
        ]
        self._note_silent(comm, messages, held, sliced, state)
        found = np.zeros(len(messages) + len(sliced.logs))
        if alone is not None:
            bad = [
                *map(self._differs, self._trainable.metrics, sliced.metrics, alone.metrics, self._allowances()),
                *map(self._differs, (v for v, _ in held), sliced.state, alone.state, sliced.allowances),
                *(self._is_another(sliced.results[name]) for name in sliced.results),
            ]
            found[:] = [*bad, *(self._readings_of(each, alone.logs[name][0]) for name, each in sliced.logs.items())]
        agreed = comm.sum([tf.constant(found, tf.float64)], "hfdt.aggregates")[0].numpy() if len(found) else found
        self._faults.update((m, None) for m, bad in zip(messages, agreed[: len(messages)], strict=True) if bad)
        for name, readings in zip(sliced.logs, agreed[len(messages) :].astype(int), strict=True):
            self._readings[name] = self._readings.get(name, _MEAN | _SUM) & int(readings)

    def _note_silent(self, comm: Comm, messages: list[str], held: Any, sliced: Any, state: Untouched) -> None:
        """Record which unproven variables no rank's slice has changed; metrics start at 0. A collective."""
        variables = (*self._trainable.metrics, *(v for v, _ in held))
        unproven = [i for i, v in enumerate(variables) if id(tensor_variable(v)) in self._unproven]
        if not unproven:
            return
        metrics = [bool(np.any(each)) for each in sliced.metrics]
        changed = [
            metrics[i] if i < len(metrics) else state.changed([variables[i]], _FLOAT32) is not None for i in unproven
        ]
        flags = tf.constant(list(map(float, changed)), tf.float64)
        ranks = comm.sum([flags], "hfdt.aggregates")[0].numpy()  # that have changed each
        for i, count in zip(unproven, ranks, strict=True):
            key = id(tensor_variable(variables[i]))
            self._silent[key] = None if count else self._silent.get(key, messages[i])

    def refuse_unproven(self) -> None:
        """Add the unproven variables that no batch has changed to the faults: they may be sums or means."""
        self._faults.update((message, None) for message in self._silent.values() if message)

    def faults(self, others: list[str], rows: int) -> list[str]:
        """Return what does not add up, as messages.

        Args:
            others: Names of the step's results that are not one number.
            rows: The rows of the batch; the mean over one row is its sum.
        """
        found = list(self._faults)
        found += [f"{self._step(name)}, which is not one number" for name in others if name not in self._names]
        for name in sorted(self._sources.mixed):
            found.append(f"{self._step(name)} from the states of metrics, and each rank has a part of them")
        found += [
            f"{self._step(name)}, which is neither a mean nor a sum over samples"
            for name, readings in self._plain()
            if not readings
        ]
        return found + [
            f"{self._step(name)}, which is 0 at first: it may be a mean or a sum over samples"
            for name, readings in self._plain()
            if readings == _MEAN | _SUM and rows > 1 and name not in self._sources.fixed and self._sources.plain
        ]

    @property
    def summed(self) -> frozenset[str]:
        return frozenset(name for name, readings in self._plain() if readings == _SUM)

    def _plain(self) -> list[tuple[str, int]]:
        other = {*self._sources.metrics, *self._sources.mixed}
        return [(name, r) for name, r in self._readings.items() if name not in other | self._names]

    def _step(self, name: str) -> str:
        cls = type(self._trainable.model)
        return f"{cls.__name__}.train_step{place_of(cls, 'train_step')} returns {name!r}"

    @property
    def _names(self) -> set[str]:
        """The names of the logs that are metrics' results."""
        model = self._trainable.model
        return {*model.get_metrics_result(), *(m.name for m in metric_objects(model))} - self._sources.plain

    def _differs(self, variable: Any, ours: Tensor, theirs: Tensor, allowance: float) -> bool:
        """Compare relative to the largest norm of this probe: in a sum near 0, slices cancel but for their rounding."""
        size = float(np.linalg.norm(_wide(theirs)))
        largest = max(size if math.isfinite(size) else 0.0, self._sizes.get(id(variable), 0.0))
        self._sizes[id(variable)] = largest
        found = relative([ours], [theirs]) * (size / largest if size and largest else 1.0)
        return found > max(self._tolerance, allowance)

    def _readings_of(self, over_ranks: tuple[float, float], alone: float) -> int:
        """Return which of (mean, sum) over ranks equals the number of the whole batch, as bits."""
        bound = self._tolerance * abs(alone)
        close = [not math.isfinite(alone) or abs(each - alone) <= bound for each in over_ranks]
        return _MEAN * close[0] + _SUM * close[1]

    def _is_another(self, pair: tuple[Any, float]) -> bool:
        """Return whether a log is not the result of the metric from whose state it is computed."""
        if pair[0] is None:
            return True
        result, log = np.asarray(pair[0], np.float64), pair[1]
        return bool(result.size != 1 or abs(float(result.reshape(-1)[0]) - log) > _SAME * abs(log))

    def _owners(self) -> list[tuple[str, Any]]:
        """Return the name and the metric of each metric variable."""
        owners = {id(v): (m.name, m) for m in metric_objects(self._trainable.model) for v in m.variables}
        return [owners.get(id(v), (str(v.name), None)) for v in self._trainable.metrics]

    def _allowances(self) -> list[float]:
        """Return the relative difference allowed to each metric variable for counts of the library's own metrics."""
        objects = metric_objects(self._trainable.model)
        known = {id(v) for m in objects if of_library(m) and of_library(getattr(m, "_fn", m)) for v in m.variables}
        return [_COUNTS if id(v) in known else OVER_RANKS for v in self._trainable.metrics]


def _message_of_metric(name: str, metric: Any) -> str:
    return f"metric {name!r}{place_of(type(metric), 'update_state')} has a state that cannot be summed over ranks"


def _message_of_variable(variable: Any, line: str) -> str:
    name = getattr(variable, "path", tensor_variable(variable).name)
    return f"the training step assigns variable {name!r} ({line}) a value that depends on the rows of each rank"


def agreed(comm: Comm, number: float) -> float:
    """Return rank 0's number, so that all ranks decide alike. A collective."""
    mine = number if comm.rank == 0 else 0.0
    return float(comm.sum([tf.constant(mine, tf.float64)], "hfdt.probe")[0])


def relative(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return |ours - theirs| / |theirs| over all tensors together; NaN where numbers are not finite.

    Where `theirs` are all 0, it is 0 for equal tensors and infinite for others.
    """
    difference = sum(float(np.sum(np.square(_wide(a) - _wide(b)))) for a, b in zip(ours, theirs, strict=True))
    norm = sum(float(np.sum(np.square(_wide(b)))) for b in theirs)
    if not norm:
        return 0.0 if difference == 0 else math.inf if math.isfinite(difference) else math.nan
    return math.sqrt(difference / norm) if math.isfinite(difference + norm) else math.nan


def fine(difference: float, tolerance: float) -> bool:
    """Return whether the difference is tolerable. NaN is: without HFDT the gradients would not be finite either."""
    return math.isnan(difference) or difference <= tolerance


def _wide(tensor: Tensor) -> Any:
    return np.asarray(tf.cast(tensor, tf.float64))
