"""A rank's part of whole batches, cut in the TensorFlow graph."""

from typing import Any

import tensorflow as tf

from fdt.data.source import Batch, Dataset, as_is


def part(batches: Dataset, rank: int, size: int) -> Dataset:
    """Return (batch, share) for each batch: see Source.slices."""
    spread = isinstance(batches.element_spec, tuple)  # tf.data calls map functions with a tuple's items

    @as_is
    def cut(*element: Any) -> tuple[Batch, Any]:
        return cut_batch(element if spread else element[0], rank, size)

    return batches.map(cut, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def cut_batch(batch: Batch, rank: int, size: int) -> tuple[Batch, Any]:
    """Cut a batch of tensors by the rule of `cut` in fdt/data/epochs.py. Scalar leaves go to every rank."""
    return cut_between(batch, rank, rank + 1, size)


def cut_between(batch: Batch, low: Any, high: Any, parts: int) -> tuple[Batch, Any]:
    """Return the rows from `low` / `parts` to `high` / `parts` of a batch, and their share.

    Without a row between, the result is the batch's first row, with share 0.
    """
    total = tf.cast(rows(batch), tf.int64)
    low, high = total * low // parts, total * high // parts
    share = tf.stack([high - low, total])
    idle = tf.equal(low, high)
    low, high = tf.where(idle, tf.zeros_like(low), low), tf.where(idle, tf.ones_like(high), high)
    return tf.nest.map_structure(lambda leaf: _cut_leaf(leaf, low, high, parts), batch), share


def rows(batch: Batch) -> Any:
    """Return the number of samples of a batch: the rows of its first tensor that is not a scalar."""
    first = leading(batch)
    if isinstance(first, tf.RaggedTensor):
        return first.nrows(tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return tf.shape(first)[0]


def leading(batch: Batch) -> Any:
    """Return the first tensor of a batch that is not a scalar; `enumerate` puts a scalar index first."""
    return next(leaf for leaf in tf.nest.flatten(batch) if leaf is not None and leaf.shape.rank != 0)


def _cut_leaf(leaf: Any, low: Any, high: Any, parts: int) -> Any:
    if leaf is None or leaf.shape.rank == 0 or parts == 1:
        return leaf
    if isinstance(leaf, tf.SparseTensor):
        return _cut_sparse(leaf, low, high)
    return leaf[low:high]


def _cut_sparse(leaf: Any, low: Any, high: Any) -> Any:
    rest = leaf.dense_shape[1:]
    part = tf.sparse.slice(
        leaf, tf.concat([[low], tf.zeros_like(rest)], axis=0), tf.concat([[high - low], rest], axis=0)
    )
    part.set_shape([None, *leaf.shape[1:]])
    return part
