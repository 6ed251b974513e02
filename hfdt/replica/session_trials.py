"""Trials of a session's run before it is divided: they determine which results are means and which are sums over rows.

The run is tried on the first batches, and on the first one of each number of rows, and on the parts that the ranks get
of them; all variables are restored. Operations after the gradients get those of the whole batch each time, as in the
ranks' own runs. A trial detects a graph that cannot run on a part, and a gradient that is neither mean nor sum. A
fetched number that is neither is computed of the whole batch from then on, and so is each number until several batches
have shown the same.
"""

import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.sessions import feeds as feeding
from client_shim.replica.sessions.plans import FetchPlan
from hfdt.replica.session_outputs import INEXACT, Cell, OutputKind, cells, exactly, how, reading, rounding
from hfdt.replica.session_sources import CellSource, CellSources
from hfdt.worker.step_context import Reading

Share = tuple[int, int]  # samples of this rank, samples of the batch
TRIES = 20  # at most, until every result is known to be a mean or a sum
ALIKE = 3  # batches that must show the same of a number: of one batch, a ratio or a median may be a mean by chance
Name = tuple[str, int]  # of a cell: its tensor's name and its index in the tensor
Cells = Mapping[Name, Cell]
Recorded = Mapping[int, Sequence[Any]]  # number of a gradient -> its arrays
# (feeds, gradients to continue with; None: the run's own) -> (values, the run's own gradients)
Try = Callable[[dict[Any, Any], Recorded | None], tuple[list[Any], Recorded]]


@dataclass
class TrialHistory:
    """The results of all trials of one graph.

    `readings`: by a gradient's number. `outputs`: how cells are combined. `open`: cells that are WHOLE for the time
    being, with what batches have shown of them, and how many did. `sources`: of cells. `refused`: why a
    tried run cannot be divided. `rows`: the numbers of rows on which a run was tried.
    """

    readings: dict[int, Reading] = field(default_factory=dict)
    outputs: dict[Name, OutputKind] = field(default_factory=dict)
    open: dict[Name, tuple[OutputKind | None, int]] = field(default_factory=dict)
    sources: dict[Name, CellSource] = field(default_factory=dict)
    refused: "weakref.WeakKeyDictionary[FetchPlan, str]" = field(default_factory=weakref.WeakKeyDictionary)
    tries: "weakref.WeakKeyDictionary[FetchPlan, int]" = field(default_factory=weakref.WeakKeyDictionary)
    rows: "weakref.WeakKeyDictionary[FetchPlan, set[int]]" = field(default_factory=weakref.WeakKeyDictionary)

    def settled(self, plan: FetchPlan, rows: int) -> bool:
        """Return whether all results of this run on `rows` rows are known."""
        return self.tries.get(plan, 0) >= TRIES and rows in self.rows.get(plan, ())

    def replace_findings(self, readings: Mapping[int, Reading], outputs: Mapping[Name, OutputKind]) -> None:
        """Take rank 0's findings in place of this rank's."""
        self.readings, self.outputs = dict(readings), dict(outputs)

    def found(self, name: Name, kind: OutputKind | None) -> None:
        """Take what a batch shows of a cell; None: nothing. What is known already must hold for it."""
        known = (self.outputs[name], ALIKE) if name in self.outputs else (None, 0)
        before, count = self.open.pop(name, known)
        if kind is OutputKind.WHOLE or (kind and before and kind is not before):
            self.outputs[name] = OutputKind.WHOLE
        elif count + bool(kind) >= ALIKE and (shown := kind or before):
            self.outputs[name] = shown
        else:
            self.outputs[name], self.open[name] = OutputKind.WHOLE, (kind or before, count + bool(kind))

    def whole(self, plan: FetchPlan, given: Cells) -> list[Name]:
        """Return the cells that a run must compute of the whole batch; `given` are known."""
        fetched = {tensor.name for tensor in plan.fetches}
        wholes = (name for name, kind in self.outputs.items() if kind is OutputKind.WHOLE and name not in given)
        return [name for name in wholes if name[0] in fetched and name in self.sources]

    def left_out(self, tensor: Any, given: Cells) -> bool:
        """Return whether a run of this rank's rows need not fetch `tensor`, because it is `given`.

        What has other effects is fetched: exchanges of gradients, changes of variables.
        """
        name = tensor.name, 0
        source, kind = self.sources.get(name), self.outputs.get(name)
        if source is None or source.tensor is not tensor or source.branches or source.moves or source.trains:
            return False
        return kind is OutputKind.WHOLE and name in given

    def how(self, name: Name, cell: Cell) -> OutputKind:
        return self.outputs.get(name, OutputKind.MEAN if np.asarray(cell).dtype.kind == "f" else OutputKind.FIRST)


@dataclass(frozen=True)
class SessionTrial:
    """The result of a trial.

    `fails`: the error on a part. `off`: the largest error of a gradient as a mean or a sum. `whole`: the whole
    batch's cells. `unknown`: the cells whose kind is not known yet. `stuck`: a cell that must be computed of the whole
    batch but waits for an update.
    """

    fails: str = ""
    off: float = 0.0
    whole: Cells = field(default_factory=dict)
    unknown: Sequence[Name] = ()
    stuck: str = ""


def tried(
    plan: FetchPlan,
    feeds: Mapping[Any, Any],
    counts: Sequence[int],
    known: TrialHistory,
    sources: CellSources,
    run: Try,
    read: Callable[[], list[Any]],
    write: Callable[[list[Any]], None],
) -> SessionTrial:
    """Try the run, and add the findings to `known`.

    `counts`: the rows of each part, none of 0. `read` and `write` access the run's variables.
    """
    before, stops = read(), list(itertools.accumulate(counts))
    rows = stops[-1]

    def on(low: int, high: int, instead: Recorded | None) -> tuple[list[Any], Recorded]:
        try:
            return run(feeding.between(feeds, rows, low, high), instead)
        finally:
            write(before)

    whole = on(0, rows, None)
    try:
        runs = [whole, *(on(low, high, whole[1]) for low, high in itertools.pairwise([0, *stops]))]
    except (tf.errors.OpError, ValueError) as error:
        return SessionTrial(fails=str(error).splitlines()[0])
    is_first = rows not in known.rows.get(plan, ())
    off = _read_gradients(plan, known, [each[1] for each in runs], counts, is_first)
    found = _read_outputs(plan, known, sources, [each[0] for each in runs], counts, is_first)
    missing = any(taken.number not in known.readings for taken in plan.taken)
    unclear = missing or found.unknown or any(name in known.open for name in found.whole)
    known.tries[plan] = known.tries.get(plan, 0) + 1 if unclear else TRIES
    return replace(found, off=off)


def _read_gradients(
    plan: FetchPlan, known: TrialHistory, runs: Sequence[Recorded], counts: Sequence[int], is_first: bool
) -> float:
    """Return the largest error of a gradient under its reading.

    The first trial on a number of rows (`is_first`) reads all gradients, later ones only those still unknown.
    """
    worst = 0.0
    for taken in plan.taken:
        if taken.number in known.readings and not is_first:
            continue
        whole, *parts = _flat(taken.sparse, [run[taken.number] for run in runs])
        found, off = reading(whole, parts, counts, known.readings.get(taken.number))
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
    plan: FetchPlan,
    known: TrialHistory,
    sources: CellSources,
    runs: Sequence[list[Any]],
    counts: Sequence[int],
    is_first: bool,
) -> SessionTrial:
    """Return the first run's cells, the names of those whose kind is not known yet, and one that is stuck."""
    whole, unknown, stuck = {}, [], ""
    for place, tensor in enumerate(plan.fetches):
        parts = list(zip(*(cells(tensor, values_[place]) for values_ in runs), strict=False))
        for i, (each, source) in enumerate(zip(parts, sources.of(tensor, len(parts)), strict=True)):
            name = tensor.name, i
            known.sources[name] = source
            if not source.races:
                whole[name] = each[0]
            if name not in known.outputs or name in known.open or (is_first and not source.noisy):
                kind = _read_cell(name, known, source, each, counts)
                if kind is OutputKind.WHOLE and source.moves:
                    stuck = source.tensor.name
                unknown += [name] * (kind is None)
    return SessionTrial(whole=whole, unknown=unknown, stuck=stuck)


def _read_cell(
    name: Name, known: TrialHistory, source: CellSource, runs: Sequence[Cell], counts: Sequence[int]
) -> OutputKind | None:
    """Add to `known` what a cell of (batch, its parts) is; None where it is not known yet."""
    whole, *parts = runs
    if source.races and not source.noisy:  # read before the update, as TensorFlow alone does nearly always
        known.outputs[name] = OutputKind.WHOLE
        return OutputKind.WHOLE
    if source.divided and not (source.noisy or source.moves):
        known.found(name, exactly(whole, parts, counts))
        return known.outputs[name]
    kind: OutputKind | None = OutputKind.FIRST
    if source.divided:
        inexact = max(INEXACT, rounding(whole))
        kind = how(whole, parts, counts) if source.noisy else exactly(whole, parts, counts, inexact)
    if kind is not None and known.outputs.get(name, kind) is not kind:
        kind = OutputKind.WHOLE
    if kind is not None:
        known.outputs[name] = kind
    return kind


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
