"""Comparison of recorded runs: whether a script's numbers, divided, equal those of the script alone. Pure arithmetic.

**The expected noise** is measured: the script runs alone once more, with each weight moved by one unit in the last
place. That moves every product of the forward pass by about its own rounding. So the two runs alone differ by the
effect of rounding, magnified by this model, on a step. Dividing a batch changes the order of sums over samples, which
causes errors of the same kind. FACTOR leaves room for another draw of them. In trials (docs/guides/verify.md) they were
at most twice the measured noise, and the difference of a wrong gradient is 1,000 times and more.

Bounds that hold independent of the measurement are added. A weight is rounded when it is stored, by half a unit before
and half a unit after a step in each run. Sums of some hundred addends are rounded by up to SUMMED units.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from client_shim.verify.records import PrintedLine, RecordedRun, RecordedStep, VariableRecord, lines_of

Steps = Sequence[RecordedStep]  # those of one run
FACTOR = 16.0
STORED = 2.0  # allowed error of an update by the storing of weights, in units in their last place
SUMMED = 64.0  # allowed error of a sum, in units in its last place
AHEAD = 2  # the noise of the next two steps counts, too, because a single number's is small by chance
BLUNT = 0.1  # if the allowed noise is more than this part of an update, the step proves nothing


@dataclass(frozen=True)
class Difference:
    """A number, or the norm of a vector, compared.

    Attributes:
        what: Its name.
        alone: Its value in the run alone.
        difference: The absolute difference to the divided run.
        noise: The allowed difference.
    """

    what: str
    alone: float
    difference: float
    noise: float

    @property
    def beyond(self) -> bool:
        """Whether the difference is more than noise. NaN in one run only differs infinitely, in both it is equal."""
        return self.difference > 0 and not self.difference <= self.noise  # the noise may be NaN


@dataclass(frozen=True)
class StepResult:
    """One compared step.

    Attributes:
        where: The script's file and line.
        loss: The loss, where both runs have it.
        update: The update of all trainable variables together.
        weights: All trainable variables together.
        others: The update of each variable, and logs.
    """

    where: str
    loss: Difference | None
    update: Difference
    weights: Difference
    others: Sequence[Difference]

    @property
    def beyond(self) -> Sequence[Difference]:
        """The differences beyond noise: the loss, single variables and logs, then all weights together."""
        every = [self.loss, *self.others, self.update, self.weights]
        return [each for each in every if each is not None and each.beyond]

    @property
    def resolution(self) -> float:
        """The smallest error of the update that would be seen, as a part of the update."""
        return self.update.noise / self.update.alone if self.update.alone else math.inf


@dataclass(frozen=True)
class LineResult:
    """A printed line after step `step`; `worst`: the worst of its numbers, None where the words themselves differ."""

    step: int
    alone: str
    divided: str
    worst: Difference | None

    @property
    def beyond(self) -> bool:
        """Whether the words differ, or a number by more than noise."""
        return self.worst is None or self.worst.beyond


@dataclass(frozen=True)
class Comparison:
    """All compared steps and lines; `left_out`: what could not be compared, and why."""

    steps: Sequence[StepResult]
    lines: Sequence[LineResult]
    left_out: Sequence[str]


def compare(alone: RecordedRun, shaken: RecordedRun, divided: RecordedRun) -> Comparison:
    """Compare the steps that all three runs have, and the lines they printed up to the end of the last of these.

    Args:
        alone: The run alone.
        shaken: The run alone whose weights were moved by one unit in the last place.
        divided: The divided run.
    """
    count = min(len(run.steps) for run in (alone, shaken, divided))
    runs = [run.steps[:count] for run in (alone, shaken, divided)]
    lines, left_out = _lines(alone, shaken, divided, count)
    return Comparison(_steps(*runs), lines, [*_only_alone(alone.steps[:count], divided.steps[:count]), *left_out])


# -- steps -----------------------------------------------------------------------------------------------------------
def _steps(alone: Steps, shaken: Steps, divided: Steps) -> list[StepResult]:
    relative = _envelope(_ratio(_off(a, s, "update"), _size(a, "update")) for a, s in zip(alone, shaken, strict=True))
    logs = {name: _logs(name, alone, shaken, divided) for name in dict.fromkeys(n for a in alone for n in a.logs)}
    shared = dict.fromkeys(n for a, d in zip(alone, divided, strict=True) for n in a.variables if n in d.variables)
    updates = {name: _updates(name, alone, shaken, divided, relative) for name in shared}
    whole = _whole("update", alone, shaken, divided)
    weights = _whole("weights", alone, shaken, divided)
    results = []
    for k, step in enumerate(alone):
        others = [found[k] for name, found in (*logs.items(), *updates.items()) if name != "loss" and k in found]
        results.append(StepResult(step.where, logs.get("loss", {}).get(k), whole[k], weights[k], others))
    return results


def _logs(name: str, alone: Steps, shaken: Steps, divided: Steps) -> Mapping[int, Difference]:
    have = [k for k, a in enumerate(alone) if name in a.logs and name in divided[k].logs]
    noise = [_gap(alone[k].logs[name], shaken[k].logs.get(name, math.nan)) for k in have]
    found = {}
    for i, k in enumerate(have):
        value, unit = alone[k].logs[name], _unit(alone[k])
        allowed = FACTOR * max(noise[: i + AHEAD + 1]) + SUMMED * unit * abs(value)
        found[k] = Difference(name, value, _gap(value, divided[k].logs[name]), allowed)
    return found


def _updates(
    name: str,
    alone: Steps,
    shaken: Steps,
    divided: Steps,
    relative: Sequence[float],
) -> Mapping[int, Difference]:
    """Compare the updates of one variable, in the steps that both runs recorded."""
    found, noise = {}, 0.0
    for k, (a, s, d) in enumerate(zip(alone, shaken, divided, strict=True)):
        mine, theirs, moved = (step.variables.get(name) for step in (a, d, s))
        if mine is None or theirs is None or not (mine.known and theirs.known):
            continue
        if moved is not None and moved.known:
            noise = max(noise, _distance(mine.update, moved.update))
        size = _norm(mine.update)
        allowed = FACTOR * max(noise, relative[k] * size) + _rounding([mine])
        found[k] = Difference(f"update of {mine.name}", size, _distance(mine.update, theirs.update), allowed)
    return found


def _whole(what: str, alone: Steps, shaken: Steps, divided: Steps) -> Sequence[Difference]:
    """Compare all trainable variables as one vector: their update, or their values."""
    noise = _envelope(_off(a, s, what) for a, s in zip(alone, shaken, strict=True))
    found = []
    for a, d, n in zip(alone, divided, noise, strict=True):
        allowed = FACTOR * n + _rounding(_trainable(a).values())
        found.append(Difference(what, _size(a, what), _off(a, d, what), allowed))
    return found


def _rounding(variables: Iterable[VariableRecord]) -> float:
    """Return the bound of errors by storing weights and summing; a variable made in the step counts by its size."""
    bounds = []
    for each in variables:
        update = each.update if each.known else each.now
        before = each.now - update
        bounds.append(each.unit * (STORED * max(_norm(each.now), _norm(before)) + SUMMED * _norm(update)))
    return float(np.nansum(bounds))


def _off(a: RecordedStep, b: RecordedStep, what: str) -> float:
    """Return the distance of `what` ("update" or "weights") of all trainable variables; infinite if names differ."""
    mine, theirs = _trainable(a), _trainable(b)
    if list(mine) != list(theirs):
        return math.inf
    if what == "weights":
        return math.hypot(*(_distance(mine[name].now, theirs[name].now) for name in mine))
    known = [name for name in mine if mine[name].known and theirs[name].known]
    return math.hypot(*(_distance(mine[name].update, theirs[name].update) for name in known))


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the norm of the difference. NaN in the same place of both counts as equal, in one only as infinite."""
    nans = np.isnan(a), np.isnan(b)
    if not np.array_equal(*nans):
        return math.inf
    gap = np.where(nans[0] | (a == b), 0.0, a - b)
    return _norm(gap)


def _size(step: RecordedStep, what: str) -> float:
    variables = _trainable(step).values()
    vectors = [v.now for v in variables] if what == "weights" else [v.update for v in variables if v.known]
    return math.hypot(*(_norm(np.nan_to_num(vector)) for vector in vectors))


def _trainable(step: RecordedStep) -> Mapping[str, VariableRecord]:
    return {name: values for name, values in step.variables.items() if values.trainable}


def _unit(step: RecordedStep) -> float:
    return max((values.unit for values in step.variables.values()), default=0.0)


def _envelope(noise: Iterable[float]) -> list[float]:
    return list(accumulate(noise, max))


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def _gap(a: float, b: float) -> float:
    return 0.0 if a == b or (math.isnan(a) and math.isnan(b)) else math.inf if math.isnan(a - b) else abs(a - b)


def _norm(vector: np.ndarray) -> float:
    return float(np.linalg.norm(vector))


def _only_alone(alone: Steps, divided: Steps) -> list[str]:
    names = dict.fromkeys(n for a, d in zip(alone, divided, strict=True) for n in a.logs if n not in d.logs)
    return [f"{name}: only the run alone has it" for name in names]


# -- prints ----------------------------------------------------------------------------------------------------------
def _lines(
    alone: RecordedRun, shaken: RecordedRun, divided: RecordedRun, count: int
) -> tuple[list[LineResult], list[str]]:
    """Compare printed lines in order. Lines that two runs alone print differently are left out."""
    mine, moved, theirs = (_up_to(run, count) for run in (alone, shaken, divided))
    if [line.skeleton for line in mine] != [line.skeleton for line in moved]:
        return [], ["printed lines: not compared, because two runs alone do not print the same lines"] if mine else []
    expected: dict[tuple[str, int], tuple[float, float]] = {}
    for a, s in zip(mine, moved, strict=True):
        _expect(expected, a, s)
    results, unit = [], max(map(_unit, alone.steps), default=0.0)
    for k, a in enumerate(mine):
        step = sum(each.printed <= a.start for each in alone.steps)
        d = theirs[k] if k < len(theirs) else None
        worst = _worst(a, d, expected, unit) if d is not None and d.skeleton == a.skeleton else None
        results.append(LineResult(step, a.text, d.text if d is not None else "", worst))
    if len(theirs) > len(mine):
        results.append(LineResult(count, "", theirs[len(mine)].text, None))
    return results, []


def _up_to(run: RecordedRun, count: int) -> Sequence[PrintedLine]:
    """Return the lines printed before step `count + 1` ended; all lines where the run had no more steps."""
    lines = lines_of(run.output)
    return lines if len(run.steps) <= count else [each for each in lines if each.start < run.steps[count].printed]


def _expect(expected: dict[tuple[str, int], tuple[float, float]], a: PrintedLine, s: PrintedLine) -> None:
    """Keep, for all lines of one skeleton, the largest noise and the finest last digit of each number."""
    for i, (x, y) in enumerate(zip(a.numbers, s.numbers, strict=True)):
        noise, last = expected.get((a.skeleton, i), (0.0, x.last))
        expected[a.skeleton, i] = max(noise, _gap(x.value, y.value)), _finest(last, x.last, y.last)


def _finest(*lasts: float) -> float:
    """Return the finest last digit; a whole number among others may be a float that is printed without zeros."""
    return min(filter(None, lasts), default=0.0)


def _worst(
    a: PrintedLine, d: PrintedLine, expected: Mapping[tuple[str, int], tuple[float, float]], unit: float
) -> Difference:
    """Return the number of the line that is nearest to its noise, or furthest beyond it."""
    found = []
    for i, (x, y) in enumerate(zip(a.numbers, d.numbers, strict=True)):
        noise, last = expected[a.skeleton, i]
        digits = y.last if y.last < 0.01 * abs(y.value) else 0.0  # 0.9 instead of 1 is no rounding
        allowed = FACTOR * noise + _finest(last, digits) * (1 + 1e-9) + SUMMED * unit * abs(x.value)
        found.append(Difference("printed", x.value, _gap(x.value, y.value), allowed))
    return max(found, key=lambda each: (each.beyond, _ratio(each.difference, each.noise), each.noise))
