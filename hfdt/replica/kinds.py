"""Eager numbers that come of a rank's part of a batch: sums over its samples, or means?

A step function can be tried on halves of a batch (probe.py), an eager loop cannot. So what it computes is followed,
operation by operation, from the rows that the rank was given: an eager tensor that comes of them is marked
(algebra.py says how). TensorFlow calls us for every eager operation of this thread, a few microseconds each, from the
first such batch on.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import gen_array_ops

from fdt.patches import Patch, patched
from hfdt.replica.algebra import Kind, Mark, is_fixed, result
from hfdt.replica.batches import MARK, Share

WHOLE = "whole"  # in place of a Mark


class _State:
    def __init__(self) -> None:
        self.following = False  # is TensorFlow to call us?
        self.still = 0
        self.implied: tuple[Share, int] | None = None  # NumPy's arrays of so many rows are parts of the batch, too


_state = _State()


@contextlib.contextmanager
def followed() -> Iterator[None]:
    """Within, `enter` has effect."""
    try:
        with patched([Patch(gen_array_ops, "reshape", reshaped)]):
            yield
    finally:
        if _state.following:
            context.context().remove_op_callback(_follow)
            _state.following, _state.implied = False, None


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
    _begin()
    for leaf in tf.nest.flatten(part, expand_composites=True):
        if tf.is_tensor(leaf) and leaf.shape.rank:
            setattr(leaf, MARK, Mark(Kind.ROWS, share, fixed=True))


def enter_as(tensors: Sequence[Any], rows: Mark, kind: Kind) -> None:
    """Mark what was made of `rows` where it could not be followed."""
    for tensor in tensors:
        setattr(tensor, MARK, replace(rows, kind=kind, fixed=False))


def rows_among(values: Any) -> Mark | None:
    """The first mark of rows among tensors and arrays."""
    leaves = (leaf for leaf in tf.nest.flatten(values) if tf.is_tensor(leaf) or isinstance(leaf, np.ndarray))
    marks = (mark_of(leaf) or (_implied(tf.convert_to_tensor(leaf)) if _state.implied else None) for leaf in leaves)
    return next((mark for mark in marks if mark is not None and mark.kind is Kind.ROWS), None)


def sized(original: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of tf.size, which is no operation where the shape is known."""
    size = original(values, *args, **kwargs)
    rows = mark_of(values) if tf.is_tensor(values) and tf.executing_eagerly() else None
    if rows is not None and rows.kind is Kind.ROWS and not rows.picked:
        setattr(size, MARK, replace(rows, kind=Kind.SUM, count=int(size), fixed=True, size=True))
    return size


def reshaped(original: Any, tensor: Any, shape: Any, name: Any = None) -> Any:
    """In place of gen_array_ops.reshape, of which TensorFlow does not tell."""
    output = original(tensor, shape, name)
    if _state.following and isinstance(output, tf.Tensor) and tf.executing_eagerly() and tf.is_tensor(tensor):
        _follow("Reshape", [tensor], None, [output])
    return output


def imply(share: Share, rows: int) -> None:
    """Until `imply_nothing`, an operation's unmarked arguments of so many rows are taken for parts of the batch.

    What NumPy holds cannot be marked, and is a new tensor wherever an operation takes it.
    """
    _begin()
    _state.implied = share, rows


def imply_nothing() -> None:
    _state.implied = None


def _begin() -> None:
    if not _state.following:
        context.context().add_op_callback(_follow)
        _state.following = True


def mark_of(tensor: Any) -> Mark | None:
    mark = getattr(tensor, MARK, None)
    return None if mark is WHOLE else mark


def is_whole(tensor: Any) -> bool:
    """Is it a weight's value or gradient, or made of such?"""
    return getattr(tensor, MARK, None) is WHOLE


def keep_whole(tensors: Any) -> None:
    """Mark gradients, which have weights' shapes, whatever a batch's rows are."""
    for tensor in tf.nest.flatten(tensors):
        if isinstance(tensor, tf.Tensor):
            setattr(tensor, MARK, WHOLE)


def forget(tensor: Any) -> None:
    """It has the whole batch's value now."""
    if mark_of(tensor) is not None:
        delattr(tensor, MARK)


def become_mean(tensor: Any) -> None:
    mark = mark_of(tensor)
    if mark is not None and mark.kind is not Kind.ROWS:
        setattr(tensor, MARK, replace(mark, kind=Kind.MEAN, over=None))


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
    operation = operation.decode() if isinstance(operation, bytes) else operation
    if operation == "ReadVariableOp":
        keep_whole(outputs)
        return
    found = [getattr(tensor, MARK, None) or _implied(tensor) for tensor in inputs]
    marks = [None if mark is WHOLE else mark for mark in found]
    if not any(marks):
        keep_whole(outputs if WHOLE in found else [])
        return
    given = attributes or ()  # not every operation has any
    named = dict(zip(given[::2], given[1::2], strict=True))
    with unfollowed():
        for output in outputs:
            mark = result(operation, inputs, marks, output, named)
            if mark is not None:
                setattr(output, MARK, replace(mark, fixed=is_fixed(inputs, marks, output)))


def _implied(tensor: Any) -> Mark | None:
    if _state.implied is None:
        return None
    share, rows = _state.implied
    return Mark(Kind.ROWS, share, fixed=True) if tensor.shape.rank and tensor.shape[0] == rows else None
