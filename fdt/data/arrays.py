"""The source of array data: each rank slices or gathers rows in the TensorFlow graph, from shared memory."""

from functools import partial, reduce
from itertools import accumulate
from typing import Any

import numpy as np
import tensorflow as tf

from fdt import ops
from fdt.blobs import Blobs
from fdt.data import epochs
from fdt.data.epochs import Cut, EpochBoundary, Epochs, Rows, Span
from fdt.data.source import ReadBatch, as_is
from fdt.job import ArrayData
from fdt.tensors import unflatten
from fdt.typing import Batch, Dataset

AHEAD = 2  # batches prepared while a step runs


class KerasOrder:
    """The permutations by which Keras itself shuffles rows, after TensorFlow's global seed was set.

    Keras 3 draws each pass from a new iterator, so all passes have one order (3.15, array_data_adapter.py). tf_keras
    draws all passes from one iterator (2.21, data_adapter.py).

    Args:
        rows: The number of rows.
        seed: TensorFlow's global seed, from 0 to 2^31 - 2.
        plan: The passes.
    """

    def __init__(self, rows: int, seed: int, plan: Epochs) -> None:
        self._first, self._moves = plan.first, plan.boundary is EpochBoundary.JOINED
        draw = partial(tf.raw_ops.RandomShuffle, seed=seed, seed2=0 if seed else 2**31 - 1)  # of (0, 0) it is random
        numbers = partial(tf.range, rows, dtype=tf.int32 if rows < 2**31 else tf.int64)
        orders = tf.data.Dataset.range(1).repeat().map(as_is(lambda _: draw(value=numbers())))
        self._orders = orders.with_options(_plain_options())
        self._drawn, self._next, self._last = 0, iter(self._orders), None

    def permutation(self, data_pass: int) -> Any:
        """Return the rows of a pass in its order, (rows,); int32 if that suffices, else int64."""
        count = 1 + (data_pass - self._first if self._moves else 0)
        if count < self._drawn:
            self._drawn, self._next = 0, iter(self._orders)
        for _ in range(count - self._drawn):
            self._last = next(self._next).numpy()
        self._drawn = count
        return self._last


class ArraySource:
    """Batches of `batch_size` rows.

    Without a shuffle, a rank's part of a batch is a slice of the arrays. With one, its rows are gathered by Keras's own
    permutation, or by one that depends only on `seed` and the number of the pass. With `fresh`, each global batch is
    sampled at random instead, by `seed`, epoch and number.

    Args:
        data: The arrays.
        blobs: Their store.
        batch_size: Rows of a global batch.
        plan: The passes and epochs.
        shuffle: Whether to permute the rows.
        seed: Determines the permutations and samples.
        fresh: Sample each global batch at random.
        keras: Keras's own permutations; None: those by `seed`.
    """

    def __init__(
        self,
        data: ArrayData,
        blobs: Blobs,
        batch_size: int,
        plan: Epochs,
        *,
        shuffle: bool,
        seed: int,
        fresh: bool = False,
        keras: KerasOrder | None = None,
    ) -> None:
        self.samples = data.rows
        self.batch_size = batch_size
        self._plan, self._shuffle, self._seed, self._fresh = plan, shuffle, seed, fresh
        self._columns = unflatten(data.structure, [ops.mapped_tensor(a) for a in blobs.get_arrays(data.arrays)])
        self._keras = keras
        self._order: tuple[int, Any] = -1, None  # the last pass, and its permutation

    @property
    def steps(self) -> int:
        """Implement Source."""
        return self._plan.count(self._plan.first)

    @property
    def element_spec(self) -> Any:
        """Implement Source."""
        return _map(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), self._columns)

    reads_once = False

    def count(self, epoch: int) -> int:
        """Implement Source."""
        return self._plan.count(epoch)

    def first_batch(self) -> Batch:
        """Implement Source."""
        return self.read(self._plan.first, 0)

    def spread(self, rows: int) -> Batch:
        """Return rows at equal distances of all the data."""
        with tf.device("CPU:0"):
            return self._gather(np.linspace(0, self.samples - 1, rows).astype(np.int64))

    def slices(self, epoch: int, rank: int, size: int) -> Dataset:
        """Implement Source."""
        spans = self._plan.spans(epoch) or [Span(epoch, 0, 0)]
        begins = accumulate((span.batches for span in spans[:-1]), initial=0)
        parts = [self._part(span, rank, size, epoch, begin) for span, begin in zip(spans, begins, strict=True)]
        whole = reduce(lambda left, right: left.concatenate(right), parts)
        return whole.prefetch(AHEAD).with_options(_plain_options())

    def reader(self, epoch: int) -> ReadBatch:
        """Implement Source."""
        return partial(self.read, epoch)

    def read(self, epoch: int, index: int) -> Batch:
        """Return the global batch `index` of `epoch`."""
        data_pass, number = epochs.locate(self._plan.spans(epoch), index)
        low = number * self.batch_size
        high = min(low + self.batch_size, self.samples)
        with tf.device("CPU:0"):
            if self._fresh:
                return self._gather(epochs.fresh_rows(self.samples, high - low, self._seed, epoch, index))
            if self._shuffle:
                return self._gather(self._permutation(data_pass)[low:high])
            return self._slice(low, high)

    def _part(self, span: Span, rank: int, size: int, epoch: int, begin: int) -> Dataset:
        """Return a rank's part of the span's batches, of which the first is number `begin` of `epoch`."""
        low, high = epochs.bounds(self.samples, self.batch_size, span.first, span.batches)
        table, gathers = epochs.cut(low, high, rank, size), self._shuffle or self._fresh
        if self._fresh:
            picks = self._rows(table, self._sampled(low, high, epoch, begin))
        else:
            picks = self._rows(table, self._permutation(span.data_pass)) if gathers else _ranges(table)
        length = _common(table.high - table.low)

        @as_is
        def batch(pick: Any, share: Any) -> tuple[Batch, Any]:
            value = self._gather(pick) if gathers else self._slice(pick[0], pick[1])
            return _map(lambda t: tf.ensure_shape(t, [length, *t.shape[1:]]), value), share

        shares = tf.data.Dataset.from_tensor_slices(table.share)
        return tf.data.Dataset.zip((picks, shares)).map(batch)

    def _sampled(self, low: Rows, high: Rows, epoch: int, begin: int) -> Rows:
        """Return an order in which rows [low, high) are a random sample, for each batch of a pass."""
        order = np.zeros(self.samples, np.int64)
        for number, (a, b) in enumerate(zip(low, high, strict=True), begin):
            order[a:b] = epochs.fresh_rows(self.samples, b - a, self._seed, epoch, number)
        return order

    def _rows(self, table: Cut, order: Any) -> Dataset:
        """Return each batch's row numbers, computed in advance: slicing in the map costs a third more (measured)."""
        full = int(np.count_nonzero(table.share[:, 1] == self.batch_size))  # all but a last partial batch
        width = table.high[0] - table.low[0] if full else 0
        parts = [tf.data.Dataset.from_tensor_slices(order[table.low[:full, None] + np.arange(width)])]
        parts += [
            tf.data.Dataset.from_tensors(order[a:b]) for a, b in zip(table.low[full:], table.high[full:], strict=True)
        ]
        return reduce(lambda left, right: left.concatenate(right), parts)

    def _slice(self, low: Any, high: Any) -> Batch:
        return _map(lambda t: t[low:high], self._columns)

    def _gather(self, rows: Any) -> Batch:
        return _map(lambda t: tf.gather(t, rows, axis=0), self._columns)

    def _permutation(self, data_pass: int) -> Any:
        if self._order[0] != data_pass:
            draw = self._keras.permutation if self._keras else partial(epochs.permutation, self.samples, self._seed)
            self._order = data_pass, draw(data_pass)
        return self._order[1]


def _plain_options() -> tf.data.Options:
    options = tf.data.Options()  # as Keras does: the default optimizations only cost a serialization of the graph
    options.experimental_optimization.apply_default_optimizations = False
    # Every epoch deletes an iterator, which waits for the autotuner's thread: up to 1.3 s (measured).
    options.autotune.enabled = False
    return options


def _ranges(table: Cut) -> Dataset:
    return tf.data.Dataset.from_tensor_slices(np.stack([table.low, table.high], axis=-1))


def _common(lengths: Rows) -> int | None:
    """Return the length that all slices share, for a static shape that helps compilation; None when lengths differ."""
    return int(lengths[0]) if len(lengths) and bool(np.all(lengths == lengths[0])) else None


def _map(function: Any, value: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: None if leaf is None else function(leaf), value)
