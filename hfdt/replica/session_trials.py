"""Trials of a session's run before it is divided: they determine which results are means and which are sums over rows.

The run is tried on the first batch and on its halves, and all variables are restored. Operations after the gradients
get those of the whole batch each time, as in the ranks' own runs. A trial detects a graph that cannot run on half a
batch, and a gradient that is neither mean nor sum.
"""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.sessions import feeds as feeding
from client_shim.replica.sessions.plans import FetchPlan
from hfdt.replica.session_outputs import Cell, OutputKind, cells, how, reading
from hfdt.worker.step_context import Reading

Share = tuple[int, int]  # samples of this rank, samples of the batch
TRIES = 20  # at most, until every result is known to be a mean or a sum
Name = tuple[str, int]  # of a cell: its tensor's name and its index in the tensor
Recorded = Mapping[int, Sequence[Any]]  # number of a gradient -> its arrays
# (feeds, gradients to continue with; None: the run's own) -> (values, the run's own gradients)
Try = Callable[[dict[Any, Any], Recorded | None], tuple[list[Any], Recorded]]


@dataclass
class TrialHistory:
    """The results of all trials of one graph.

    `readings`: by a gradient's number. `outputs`: how cells are combined. `refused`: why a tried run cannot be divided.
    """

    readings: dict[int, Reading] = field(default_factory=dict)
    outputs: dict[Name, OutputKind] = field(default_factory=dict)
    refused: "weakref.WeakKeyDictionary[FetchPlan, str]" = field(default_factory=weakref.WeakKeyDictionary)
    tries: "weakref.WeakKeyDictionary[FetchPlan, int]" = field(default_factory=weakref.WeakKeyDictionary)

    def settled(self, plan: FetchPlan) -> bool:
        """Return whether all results of this run are known."""
        return self.tries.get(plan, 0) >= TRIES

    def replace_findings(self, readings: Mapping[int, Reading], outputs: Mapping[Name, OutputKind]) -> None:
        """Take rank 0's findings in place of this rank's."""
        self.readings, self.outputs = dict(readings), dict(outputs)

    def how(self, name: Name, cell: Cell) -> OutputKind:
        return self.outputs.get(name, OutputKind.MEAN if np.asarray(cell).dtype.kind == "f" else OutputKind.FIRST)


@dataclass(frozen=True)
class SessionTrial:
    """The result of a trial.

    `fails`: the error on half a batch. `off`: the largest error of a gradient as a mean or a sum. `whole`: the whole
    batch's cells. `unknown`: the cells whose kind is not known yet.
    """

    fails: str = ""
    off: float = 0.0
    whole: Mapping[Name, Cell] = field(default_factory=dict)
    unknown: Sequence[Name] = ()


def tried(
    plan: FetchPlan,
    feeds: Mapping[Any, Any],
    rows: int,
    known: TrialHistory,
    run: Try,
    read: Callable[[], list[Any]],
    write: Callable[[list[Any]], None],
) -> SessionTrial:
    """Try the run, and add the findings to `known`. `read` and `write` access the run's variables."""
    before, half = read(), rows // 2

    def on(low: int, high: int, instead: Recorded | None) -> tuple[list[Any], Recorded]:
        try:
            return run(feeding.between(feeds, rows, low, high), instead)
        finally:
            write(before)

    whole = on(0, rows, None)
    try:
        first, second = on(0, half, whole[1]), on(half, 2 * half, whole[1])
        even = whole if rows == 2 * half else on(0, 2 * half, whole[1])
    except (tf.errors.OpError, ValueError) as error:
        return SessionTrial(fails=str(error).splitlines()[0])
    off = _read_gradients(plan, known, (even[1], first[1], second[1]))
    given, unknown = _read_outputs(plan, known, [each[0] for each in (whole, first, second, even)], rows)
    missing = any(taken.number not in known.readings for taken in plan.taken)
    known.tries[plan] = known.tries.get(plan, 0) + 1 if unknown or missing else TRIES
    return SessionTrial("", off, given, unknown)


def _read_gradients(plan: FetchPlan, known: TrialHistory, runs: Sequence[Recorded]) -> float:
    """Return the largest error of a gradient under its reading."""
    worst = 0.0
    for taken in plan.taken:
        found, off = reading(*_flat(taken.sparse, [run[taken.number] for run in runs]))
        if found is not None:
            known.readings[taken.number] = found
            worst = max(worst, off)
    return worst


def _flat(sparse: Sequence[str], runs: Sequence[Sequence[Any]]) -> list[Any]:
    """Return a vector for each run; an embedding's rows are added at their indices, for all rows of any run."""
    parts: list[list[Any]] = [[] for _ in runs]
    for i, kind in enumerate(sparse):
        if kind == "values":
            touched = np.unique(np.concatenate([run[i + 1] for run in runs]))
            for part, run in zip(parts, runs, strict=True):
                table = np.zeros((len(touched), *run[i].shape[1:]))
                np.add.at(table, np.searchsorted(touched, run[i + 1]), run[i])
                part.append(table.ravel())
        elif not kind:
            for part, run in zip(parts, runs, strict=True):
                part.append(np.ravel(run[i]).astype(np.float64))
    return [np.concatenate(part) for part in parts]


def _read_outputs(
    plan: FetchPlan, known: TrialHistory, runs: Sequence[list[Any]], rows: int
) -> tuple[dict[Name, Cell], list[Name]]:
    """Return the first run's cells, and the names of those whose kind is not known yet."""
    whole, unknown = {}, []
    for place, tensor in enumerate(plan.fetches):
        for i, each in enumerate(zip(*(cells(tensor, values_[place]) for values_ in runs), strict=False)):
            name = tensor.name, i
            whole[name] = each[0]
            if name not in known.outputs:
                found = how(each[0], each[1], each[2], each[3], rows)
                if found is None:
                    unknown.append(name)
                else:
                    known.outputs[name] = found
    return whole, unknown


@dataclass
class SessionRun:
    """The current training run.

    `order`: numbers of the gradients that are still to be added, one after another, since rank 0 handles one exchange
    at a time. In a trial gradients are not added but `recorded`, and replaced by those of `instead` where it is set.
    """

    share: Share
    order: list[int]
    recorded: dict[int, Sequence[Any]] | None = None
    instead: Recorded | None = None
    failure: Exception | None = None
    turn: threading.Condition = field(default_factory=threading.Condition)

    def fail(self, error: Exception) -> None:
        """Record the run's first error."""
        self.failure = self.failure or error
