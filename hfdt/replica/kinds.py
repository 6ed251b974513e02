"""Eager numbers that come of a rank's part of a batch: sums over its samples, or means?

A step function can be tried on halves of a batch (probe.py), an eager loop cannot. So what it computes is followed,
operation by operation, from the rows that the rank was given: an eager tensor that comes of them is marked.

    rows                        as they came in, and whatever still has a row for each
    rows -- Sum --> SUM         of `count` addends; so is its size, and SUM + SUM, c SUM, SUM / c
    rows -- Mean --> MEAN       so is SUM / count, SUM / SUM and whatever else is made of a MEAN
    SUM + MEAN --> BOTH         weighing ranks can be right for one of them only; so SUM + a number that is not 0

TensorFlow calls us for every eager operation of this thread, a few microseconds each, from the first such batch on.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from hfdt.replica.batches import Share

MARK = "_fdt_mark"
_REDUCING = {"Sum": "sum", "Mean": "mean", "L2Loss": "sum", "Size": "size"}
_KEEPING = frozenset(("Identity", "Cast", "Neg", "Reshape", "Squeeze", "ExpandDims", "Sum", "StridedSlice", "Unpack"))
_ADDING = frozenset(("AddV2", "Add", "Sub", "AddN", "Pack", "ConcatV2"))
_DIVIDING = frozenset(("RealDiv", "Div", "DivNoNan", "FloorDiv"))


class Kind(Enum):
    ROWS = "rows"
    SHAPE = "their shape"
    SUM = "sum over rows"
    MEAN = "mean over rows"
    BOTH = "a sum and a mean, added"


@dataclass(frozen=True)
class Mark:
    """`share`: of the batch it comes of. `count`: how many numbers a sum has added."""

    kind: Kind
    share: Share
    count: int = 0


class _State:
    def __init__(self) -> None:
        self.following = False  # is TensorFlow to call us?
        self.still = 0


_state = _State()


@contextlib.contextmanager
def followed() -> Iterator[None]:
    """Within, `enter` has effect."""
    try:
        yield
    finally:
        if _state.following:
            context.context().remove_op_callback(_follow)
            _state.following = False


@contextlib.contextmanager
def unfollowed() -> Iterator[None]:
    """Within, nothing is marked: gradients, updates, what is our own."""
    _state.still += 1
    try:
        yield
    finally:
        _state.still -= 1


def enter(part: Any, share: Share) -> None:
    """Mark the tensors of a rank's part of a batch."""
    if not _state.following:
        context.context().add_op_callback(_follow)
        _state.following = True
    for leaf in tf.nest.flatten(part, expand_composites=True):
        if tf.is_tensor(leaf) and leaf.shape.rank:
            setattr(leaf, MARK, Mark(Kind.ROWS, share))


def mark_of(tensor: Any) -> Mark | None:
    return getattr(tensor, MARK, None)


def forget(tensor: Any) -> None:
    """It has the whole batch's value now."""
    if mark_of(tensor) is not None:
        delattr(tensor, MARK)


def become_mean(tensor: Any) -> None:
    mark = mark_of(tensor)
    if mark is not None and mark.kind is not Kind.ROWS:
        setattr(tensor, MARK, replace(mark, kind=Kind.MEAN))


def _follow(
    operation: Any,
    inputs: Sequence[Any],
    attributes: Any,
    outputs: Sequence[Any],
    op_name: Any = None,
    graph: Any = None,
) -> None:
    """TensorFlow's callback."""
    if graph is not None or _state.still:
        return
    marks = [getattr(tensor, MARK, None) for tensor in inputs]
    if not any(marks):
        return
    operation = operation.decode() if isinstance(operation, bytes) else operation
    with unfollowed():
        for output in outputs:
            mark = result(operation, inputs, marks, output)
            if mark is not None:
                setattr(output, MARK, mark)


def result(operation: str, inputs: Sequence[Any], marks: Sequence[Mark | None], output: Any) -> Mark | None:
    """The mark of what `operation` makes of `inputs`, of which at least one is marked."""
    there = [mark for mark in marks if mark is not None]
    of = {mark.kind for mark in there}
    if Kind.ROWS in of:
        return _of_rows(operation, inputs, next(m for m in there if m.kind is Kind.ROWS), output)
    if Kind.SHAPE in of:
        return _of_shape(there[0], output)
    if Kind.BOTH in of:
        return replace(there[0], kind=Kind.BOTH)
    if Kind.SUM not in of:
        return there[0]
    return _of_sum(operation, inputs, marks, replace(there[0], count=max(mark.count for mark in there)))


def _of_rows(operation: str, inputs: Sequence[Any], rows: Mark, output: Any) -> Mark | None:
    how = _REDUCING.get(operation)
    if operation == "Shape":
        return replace(rows, kind=Kind.SHAPE)
    if how == "size":
        return replace(rows, kind=Kind.SUM, count=int(output))
    if how and (operation == "L2Loss" or _over_rows(inputs)):
        count = max(1, int(np.prod(inputs[0].shape)) // max(1, int(np.prod(output.shape))))
        return replace(rows, kind=Kind.SUM if how == "sum" else Kind.MEAN, count=count)
    if output.shape.rank:
        return rows
    return replace(rows, kind=Kind.MEAN)


def _over_rows(inputs: Sequence[Any]) -> bool:
    """Does the reduction take in the first axis?"""
    rank = inputs[0].shape.rank or 1
    return 0 in {int(axis) % rank for axis in np.ravel(inputs[1].numpy())}


def _of_shape(mark: Mark, output: Any) -> Mark | None:
    """A number of rows, or of elements, is a sum over rows."""
    if output.shape.rank:
        return mark
    value = float(output)
    return replace(mark, kind=Kind.SUM, count=int(value)) if value and value % max(mark.share[0], 1) == 0 else None


def _of_sum(operation: str, inputs: Sequence[Any], marks: Sequence[Mark | None], mark: Mark) -> Mark:
    kinds = [m.kind if m else None for m in marks]
    mean = replace(mark, kind=Kind.MEAN)
    if operation in _KEEPING or (operation == "Mean" and kinds[0] is Kind.SUM):
        return mark
    if operation in _ADDING:
        plain = all(k is Kind.SUM or (k is None and _is_zero(t)) for k, t in zip(kinds, inputs, strict=True))
        return mark if plain else replace(mark, kind=Kind.BOTH)
    if len(inputs) != 2 or operation not in (*_DIVIDING, "Mul"):
        return mean
    other = inputs[1 - kinds.index(Kind.SUM)]
    if mark_of(other) is not None or (operation in _DIVIDING and kinds[0] is not Kind.SUM):
        return mean
    return mean if _divides_by_count(operation, other, mark) else mark


def _divides_by_count(operation: str, number: Any, mark: Mark) -> bool:
    """Is a sum made a mean by a number that Python had, `x.shape[0]` of the part?"""
    if number.shape.rank or mark.share[0] == mark.share[1]:
        return False
    divisor = float(number) if operation in _DIVIDING else 1.0 / float(number) if float(number) else 0.0
    return any(abs(divisor - count) < 1e-3 for count in (mark.count, mark.share[0]) if count)


def _is_zero(tensor: Any) -> bool:
    return not np.any(tensor.numpy())
