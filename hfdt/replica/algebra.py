"""Of what kind is a number that an operation makes of a batch's rows?

rows                        as they came in, and whatever still has a row for each
rows -- Sum --> SUM         of `count` addends; so is its size, and SUM + SUM, c SUM, SUM / c
rows -- Mean --> MEAN       so is SUM / count, c MEAN, MEAN + c
SUM / SUM --> MEAN          over a mask, if no weight has a part in the divisor: ranks weigh by it, not by samples
SUM + MEAN --> BOTH         weighing ranks can be right for one of them only; so SUM + a number that is not 0
sqrt(MEAN), ... --> BENT    no weighing of ranks is right
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from hfdt.replica.batches import Share

_REDUCING = {"Sum": "sum", "Mean": "mean", "L2Loss": "sum", "Size": "size"}
_CHOOSING = frozenset(("Max", "Min", "Prod", "Any", "All", "ArgMax", "ArgMin"))
_ALONG = _CHOOSING | {"Sum", "Mean"}  # axes that are their second input
_KEEPING = frozenset(
    ("Identity", "Cast", "Neg", "Reshape", "Squeeze", "ExpandDims", "Sum", "StridedSlice", "StopGradient")
    + ("CheckNumerics", "EnsureShape", "SelectV2", "Transpose", "Unpack")
)
_ADDING = frozenset(("AddV2", "Add", "Sub", "AddN", "Pack", "ConcatV2"))
_DIVIDING = frozenset(("RealDiv", "Div", "DivNoNan", "FloorDiv"))


Attributes = Mapping[str, Any]  # an operation's, by name


class Kind(Enum):
    ROWS = "rows"
    SHAPE = "their shape"
    SUM = "sum over rows"
    MEAN = "mean over rows"
    BOTH = "a sum and a mean, added"
    BENT = "a function of a sum or a mean that is not linear"


@dataclass(frozen=True)
class Mark:
    """`share`: of the batch it comes of. `count`: how many numbers a sum has added.

    `fixed`: no weight has a part in it. `picked`: rows chosen by a mask. `size`: a number of rows or elements. `over`:
    this rank's part of what a mean is over, where that is not the number of samples. `axis`: where the rows are.
    """

    kind: Kind
    share: Share
    count: int = 0
    fixed: bool = False
    picked: bool = False
    size: bool = False
    over: float | None = None
    axis: int = 0


def result(
    operation: str, inputs: Sequence[Any], marks: Sequence[Mark | None], output: Any, attributes: Attributes
) -> Mark | None:
    """The mark of what `operation` makes of `inputs`, of which at least one is marked."""
    there = _there(inputs, marks)
    of = {mark.kind for mark in there}
    if Kind.ROWS in of:
        rows = _placed(operation, inputs, marks, output, attributes)
        picked = any(m.picked for m in there) or _picks(operation, inputs, marks)
        if operation == "MatMul" and None not in marks:
            return _of_rows_with_rows(inputs, marks, rows, attributes)
        floating = [mark for t, mark in zip(inputs, marks, strict=True) if mark is not None and t.dtype.is_floating]
        if any(m.kind is not Kind.ROWS and not _is_number(m, operation) for m in floating):
            return replace(rows, kind=Kind.BENT)  # each row is changed by what the others are
        return _of_rows(operation, inputs, marks, replace(rows, picked=picked), output)
    if Kind.SHAPE in of:
        return _of_shape(operation, inputs, there[0], output)
    for kind in (Kind.BOTH, Kind.BENT):
        if kind in of:
            return replace(there[0], kind=kind)
    if Kind.SUM not in of:
        return _of_mean(operation, inputs, marks, output)
    known = replace(there[0], count=max(mark.count for mark in there))
    found = _of_sum(operation, inputs, marks, known)
    bent = found.kind is Kind.BENT and not output.dtype.is_floating  # a comparison
    return replace(found, kind=Kind.MEAN) if bent else found


def _there(inputs: Sequence[Any], marks: Sequence[Mark | None]) -> list[Mark]:
    """The marks; those of floating numbers first, as a condition says nothing of what it chooses."""
    pairs = [(tensor, mark) for tensor, mark in zip(inputs, marks, strict=True) if mark is not None]
    return [mark for _, mark in sorted(pairs, key=lambda pair: not pair[0].dtype.is_floating)]


def is_fixed(inputs: Sequence[Any], marks: Sequence[Mark | None], output: Any) -> bool:
    """Has no weight a part in it? What is not floating has no gradient; unmarked arrays may be weights."""
    if not output.dtype.is_floating:
        return True
    pairs = zip(inputs, marks, strict=True)
    return all(m.fixed if m else not (t.dtype.is_floating and t.shape.rank) for t, m in pairs)


def _of_rows(
    operation: str, inputs: Sequence[Any], marks: Sequence[Mark | None], rows: Mark, output: Any
) -> Mark | None:
    how = _REDUCING.get(operation)
    if operation == "Shape":
        return replace(rows, kind=Kind.SHAPE)
    if how == "size":
        return replace(rows, kind=Kind.SUM, count=int(output), size=not rows.picked)
    if operation in _CHOOSING and output.shape.rank and _over_rows(inputs, marks):
        return replace(rows, kind=Kind.BENT)
    if how and (operation == "L2Loss" or _over_rows(inputs, marks)):
        count = max(1, int(np.prod(inputs[0].shape)) // max(1, int(np.prod(output.shape))))
        if how == "sum":
            return replace(rows, kind=Kind.SUM, count=count)
        return replace(rows, kind=Kind.MEAN, count=count, over=float(count) if rows.picked else None)
    if output.shape.rank:
        return rows
    return replace(rows, kind=Kind.BENT if output.dtype.is_floating else Kind.MEAN)


def _picks(operation: str, inputs: Sequence[Any], marks: Sequence[Mark | None]) -> bool:
    """Does it leave out rows, as boolean_mask does by a gather along the first axis?"""
    if operation != "GatherV2":
        return operation in ("DynamicPartition", "Unique", "UniqueV2")
    return marks[0] is not None and marks[0].kind is Kind.ROWS and int(inputs[2]) == 0


def _is_number(mark: Mark, operation: str) -> bool:
    """May it meet rows? A shape's number may, but not as a divisor: their sum would then be a mean."""
    return mark.kind is Kind.SHAPE or (mark.size and operation not in (*_DIVIDING, "Mul"))


def _of_rows_with_rows(inputs: Sequence[Any], marks: Sequence[Mark | None], rows: Mark, attributes: Attributes) -> Mark:
    """A matrix product: x^T y adds over rows, x y^T pairs each row with each."""
    added = 1 - int(attributes["transpose_a"]), int(attributes["transpose_b"])  # the axes
    over = [mark is not None and mark.axis == axis for mark, axis in zip(marks, added, strict=True)]
    if all(over):
        return replace(rows, kind=Kind.SUM, count=int(inputs[0].shape[added[0]]))
    return rows if any(over) else replace(rows, kind=Kind.BENT)


def _over_rows(inputs: Sequence[Any], marks: Sequence[Mark | None]) -> bool:
    """Does the reduction take in the rows' axis?"""
    return marks[0] is not None and marks[0].axis in _axes(inputs)


def _axes(inputs: Sequence[Any]) -> set[int]:
    """Those that a reduction takes in."""
    rank = inputs[0].shape.rank or 1
    return {int(axis) % rank for axis in np.ravel(inputs[1].numpy())}


def _placed(
    operation: str, inputs: Sequence[Any], marks: Sequence[Mark | None], output: Any, attributes: Attributes
) -> Mark:
    """The rows' mark, with the axis that they have in `output`."""
    pairs = zip(inputs, marks, strict=True)
    tensor, mark = max(
        ((t, m) for t, m in pairs if m is not None and m.kind is Kind.ROWS), key=lambda pair: pair[0].shape.rank or 0
    )
    axis = _moved(operation, inputs, tensor, mark.axis, output, attributes)
    return mark if axis == mark.axis else replace(mark, axis=axis)


def _moved(operation: str, inputs: Sequence[Any], tensor: Any, axis: int, output: Any, attributes: Attributes) -> int:
    """Where the rows' `axis` of `tensor` is in `output`; the first where that cannot be told."""
    rank, now = tensor.shape.rank or 0, output.shape.rank or 0
    if operation == "Transpose":
        return list(np.ravel(inputs[1].numpy())).index(axis)
    if operation in ("Pack", "ExpandDims"):
        new = int(attributes["axis"] if operation == "Pack" else inputs[1]) % now
        return axis + (new <= axis)
    if now < rank and (operation == "Unpack" or operation in _ALONG):
        gone = {int(attributes["axis"]) % rank} if operation == "Unpack" else _axes(inputs)
        return axis - sum(each < axis for each in gone) if axis not in gone else 0
    return axis if axis < min(rank, now) and tensor.shape[axis] == output.shape[axis] else 0


def _of_shape(operation: str, inputs: Sequence[Any], mark: Mark, output: Any) -> Mark | None:
    """A number of rows, or of elements, is a sum over rows; `shape[1]` is neither."""
    if operation == "StridedSlice" and not mark.axis and np.ravel(inputs[1].numpy())[0] % int(inputs[0].shape[0]):
        return None
    if output.shape.rank:
        return mark
    value = float(output)
    if not mark.picked and (not value or value % max(mark.share[0], 1)):
        return None
    return replace(mark, kind=Kind.SUM, count=int(value), size=not mark.picked)


def _of_sum(operation: str, inputs: Sequence[Any], marks: Sequence[Mark | None], mark: Mark) -> Mark:
    kinds = [m.kind if m else None for m in marks]
    if operation in _KEEPING or (operation == "Mean" and kinds[0] is Kind.SUM):
        return mark
    unmarked = [tensor for tensor, m in zip(inputs, marks, strict=True) if m is None]
    if mark.fixed and unmarked and operation in ("Maximum", "AddV2") and all(map(_is_tiny, unmarked)):
        return mark  # a divisor that is kept from being 0
    if operation in _ADDING:
        plain = all(k is Kind.SUM or (k is None and _is_zero(t)) for k, t in zip(kinds, inputs, strict=True))
        return mark if plain else replace(mark, kind=Kind.BOTH)
    bent = replace(mark, kind=Kind.BENT)
    if len(inputs) != 2 or operation not in (*_DIVIDING, "Mul"):
        return bent
    if None not in marks:
        return _of_quotient(inputs[1], *marks) if operation in _DIVIDING else bent  # type: ignore[arg-type]
    if operation in _DIVIDING and kinds[0] is not Kind.SUM:
        return bent
    other = inputs[1 - kinds.index(Kind.SUM)]
    return replace(mark, kind=Kind.MEAN) if _divides_by_count(operation, other, mark) else mark


def _of_mean(operation: str, inputs: Sequence[Any], marks: Sequence[Mark | None], output: Any) -> Mark:
    there = _there(inputs, marks)
    if operation in _KEEPING or operation == "Mean" or not output.dtype.is_floating:
        return there[0]
    if operation in _ADDING:
        return there[0] if len({mark.over for mark in there}) == 1 else replace(there[0], kind=Kind.BOTH)
    if operation == "Mul" and len(there) == 1:
        return there[0]
    if operation in _DIVIDING and marks[0] is not None:
        return _of_quotient(inputs[1], marks[0], marks[1]) if marks[1] is not None else marks[0]
    return replace(there[0], kind=Kind.BENT)


def _of_quotient(divisor: Any, mark: Mark, of_divisor: Mark) -> Mark:
    """A sum divided by a sum, or a mean by a mean; a weight in the divisor would have a gradient of its own."""
    if mark.kind is not of_divisor.kind or not of_divisor.fixed or divisor.shape.rank or mark.over is not None:
        return replace(mark, kind=Kind.BENT)
    if of_divisor.size:
        return replace(mark, kind=Kind.MEAN)
    samples = 1.0 if mark.kind is Kind.SUM else float(mark.share[0])
    return replace(mark, kind=Kind.MEAN, over=float(divisor) * samples)


def _divides_by_count(operation: str, number: Any, mark: Mark) -> bool:
    """Is a sum made a mean by a number that Python had, `x.shape[0]` of the part?"""
    if number.shape.rank or mark.share[0] == mark.share[1]:
        return False
    if operation == "Mul" and float(number) in (0.5, 1.0):  # the author's, whatever the part's rows are
        return False
    divisor = float(number) if operation in _DIVIDING else 1.0 / float(number) if float(number) else 0.0
    return any(abs(divisor - count) < 1e-3 for count in (mark.count, mark.share[0]) if count)


def _is_tiny(tensor: Any) -> bool:
    """What is added to a divisor, or 1."""
    return not tensor.shape.rank and (abs(float(tensor)) < 1e-3 or float(tensor) == 1.0)


def _is_zero(tensor: Any) -> bool:
    return not np.any(tensor.numpy())
