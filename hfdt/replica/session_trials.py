"""Before a session's run is divided: is what it differentiates, and what it gives, a mean or a sum over rows?

The run is tried on the first batch and on halves of it, and all variables are put back. What comes behind the
gradients gets those of the whole batch each time, as in the ranks' own runs. A graph that cannot take halves, or a
gradient that is neither, is found out here.
"""

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

TRIES = 20  # until all that a run gives is known to be a mean or a sum
Name = tuple[str, int]  # of a cell: its tensor's, and which of it
Recorded = Mapping[int, Sequence[Any]]  # gradients' arrays by number
# (feeds, gradients to go on with: None for the run's own) -> (values, the run's own gradients)
Try = Callable[[dict[Any, Any], Recorded | None], tuple[list[Any], Recorded]]


@dataclass
class TrialHistory:
    """Of one graph. `readings`: by a gradient's number. `outputs`: how cells are made the whole batch's. `refused`: why
    runs that were tried cannot be divided."""

    readings: dict[int, Reading] = field(default_factory=dict)
    outputs: dict[Name, OutputKind] = field(default_factory=dict)
    refused: "weakref.WeakKeyDictionary[FetchPlan, str]" = field(default_factory=weakref.WeakKeyDictionary)
    tries: "weakref.WeakKeyDictionary[FetchPlan, int]" = field(default_factory=weakref.WeakKeyDictionary)

    def settled(self, plan: FetchPlan) -> bool:
        """Has nothing of this run to be found out any more?"""
        return self.tries.get(plan, 0) >= TRIES

    def how(self, name: Name, cell: Cell) -> OutputKind:
        return self.outputs.get(name, OutputKind.MEAN if np.asarray(cell).dtype.kind == "f" else OutputKind.FIRST)


@dataclass(frozen=True)
class SessionTrial:
    """`fails`: on halves of the batch. `off`: how far a gradient is from being a mean or a sum, at most. `whole`: the
    whole batch's cells. `unknown`: those of which it is not yet known what they are."""

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
    """Tries the run; `read` and `write` are of its variables. Adds what it finds to `known`."""
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
    """OutputKind far the worst is from what it is read as."""
    worst = 0.0
    for taken in plan.taken:
        found, off = reading(*_flat(taken.sparse, [run[taken.number] for run in runs]))
        if found is not None:
            known.readings[taken.number] = found
            worst = max(worst, off)
    return worst


def _flat(sparse: Sequence[str], runs: Sequence[Sequence[Any]]) -> list[Any]:
    """A vector for each run; an embedding's rows added at their places, where any run has some."""
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
    """The first run's cells, and the names of those that are not yet known."""
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
