"""A rank's part of batches that come whole, cut in the graph."""

from typing import Any

import tensorflow as tf

from fdt.data.source import Batch, Dataset, as_is


def part(batches: Dataset, rank: int, size: int) -> Dataset:
    """(batch, share) for each batch: see Source.slices."""

    spread = isinstance(batches.element_spec, tuple)  # tf.data calls map functions with a tuple's items

    @as_is
    def cut(*element: Any) -> tuple[Batch, Any]:
        return cut_batch(element if spread else element[0], rank, size)

    return batches.map(cut, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def cut_batch(batch: Batch, rank: int, size: int) -> tuple[Batch, Any]:
    """The same rule as fdt/data/epochs.py `cut`, for tensors. Leaves without rows (scalars) go to every rank."""
    total = tf.cast(rows(batch), tf.int64)
    low, high = total * rank // size, total * (rank + 1) // size
    share = tf.stack([high - low, total])
    idle = tf.equal(low, high)
    low, high = tf.where(idle, tf.zeros_like(low), low), tf.where(idle, tf.ones_like(high), high)
    return tf.nest.map_structure(lambda leaf: _cut_leaf(leaf, low, high, size), batch), share


def rows(batch: Batch) -> Any:
    """Samples of a batch: the rows of its first tensor."""
    return tf.shape(next(leaf for leaf in tf.nest.flatten(batch) if leaf is not None))[0]


def _cut_leaf(leaf: Any, low: Any, high: Any, size: int) -> Any:
    if leaf is None or leaf.shape.rank == 0 or size == 1:
        return leaf
    return leaf[low:high]
