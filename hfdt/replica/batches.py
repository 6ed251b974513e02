"""Where batches enter a script, and are divided: a loop's iterator, a step function's arguments, train_on_batch, fit.

The rank's part is the same contiguous slice as in a worker's `fit` (fdt/data/slicing.py).
"""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.data import epochs, slicing

Share = tuple[int, int]  # samples of mine, samples of the batch
MARK = "_fdt_mark"  # attribute of an eager tensor that is followed (kinds.py)


def rows_of(values: Any) -> int | None:
    """Samples of the batch among a function's arguments: the rows of the first array that has any."""
    for leaf in tf.nest.flatten(values):
        if is_array(leaf) and len(leaf.shape) and leaf.shape[0] is not None:
            return int(leaf.shape[0])
    return None


def cut(values: Any, rows: int, rank: int, size: int) -> tuple[Any, Share]:
    """The rank's part of every array of `rows` rows; everything else as it is."""
    low, high, share = _part(rows, rank, size)
    return _mapped(lambda v: _rows(v, low, high) if has_rows(v, rows) else v, values), share


def _mapped(function: Any, values: Any) -> Any:
    """tf.nest.map_structure, whose price is paid for what is not plainly arguments only."""
    if isinstance(values, (tf.__internal__.EagerTensor, np.ndarray)):
        return function(values)
    if type(values) is tuple:
        return tuple(_mapped(function, value) for value in values)
    if type(values) is dict:
        return {key: _mapped(function, value) for key, value in values.items()}
    return tf.nest.map_structure(function, values)


@functools.lru_cache(maxsize=64)
def _part(rows: int, rank: int, size: int) -> tuple[int, int, Share]:
    part = epochs.cut(np.array([0]), np.array([rows]), rank, size)
    mine, total = (int(n) for n in part.share[0])
    return int(part.low[0]), int(part.high[0]), (mine, total)


def _rows(values: Any, low: int, high: int) -> Any:
    """`values[low:high]`, which eagerly takes five times as long as the operation alone."""
    if not isinstance(values, tf.__internal__.EagerTensor) or hasattr(values, MARK):
        return values[low:high]
    try:
        begin, size = _between(low, high, len(values.shape))
    except _InGraph:
        return values[low:high]
    return tf.raw_ops.Slice(input=values, begin=begin, size=size)


class _InGraph(Exception):
    """What is made outside of functions is a graph's all the same: of one that nobody calls, as TensorFlow 1's."""


@functools.lru_cache(maxsize=64)
def _between(low: int, high: int, rank: int) -> tuple[Any, Any]:
    """What tf.slice asks for, as tensors: made of arrays anew they would cost more than the slice."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise _InGraph  # which is not remembered
        return tf.constant([low, *[0] * (rank - 1)]), tf.constant([high - low, *[-1] * (rank - 1)])


def cut_element(element: Any, rank: int, size: int) -> tuple[Any, Any]:
    """As `cut`, for an element of a dataset, eagerly and in a graph: (part, share tensor)."""
    return slicing.cut_batch(element, rank, size)


def has_rows(leaf: Any, rows: int) -> bool:
    """Is it an array of so many rows?"""
    return is_array(leaf) and bool(len(leaf.shape)) and leaf.shape[0] == rows


def is_scalar(leaf: Any) -> bool:
    """A floating-point tensor of rank 0."""
    return tf.is_tensor(leaf) and not isinstance(leaf, tf.Variable) and leaf.shape.rank == 0 and leaf.dtype.is_floating


def is_array(leaf: Any) -> bool:
    """A tensor or NumPy array of known rank; not a variable, which is a model's."""
    if isinstance(leaf, np.ndarray):
        return True
    return tf.is_tensor(leaf) and not isinstance(leaf, tf.Variable) and leaf.shape.rank is not None


def has_batches(element: Any) -> bool:
    """Does a dataset yield batches, not single values? An index in front is `enumerate`'s."""
    leaves = [leaf for leaf in tf.nest.flatten(element) if tf.is_tensor(leaf)]
    first = next((leaf for leaf in leaves if leaf.shape.rank != 0 or leaf.dtype != tf.int64), None)
    return first is not None and first.shape.rank != 0
