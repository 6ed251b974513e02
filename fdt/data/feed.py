"""The source of fed data: batches that the client draws and sends (generators, PyDataset, some tf.data pipelines).

Every rank maps every batch, without a copy, and keeps its slice. A rank requests at most FEED_WINDOW batches ahead of
the batches it has taken, which bounds the memory of the client and of the store.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import tensorflow as tf

from fdt.blobs import Blobs
from fdt.data import epochs, source
from fdt.data.source import ReadBatch
from fdt.errors import OTHER_ROWS, WorkerError
from fdt.job import FEED_WINDOW, FeedData
from fdt.rpc.session_pb2 import FeedBatch, FeedWanted
from fdt.tensors import unflatten
from fdt.typing import Batch, Dataset

_END = object()


class Feed:
    """The received batches of one feed. Any thread may call `offer`. `want` requests more batches."""

    def __init__(self, name: str, blobs: Blobs, want: Callable[[FeedWanted], None]) -> None:
        self.name = name
        self._blobs, self._want = blobs, want
        self._arrived: dict[tuple[int, int], Any] = {}
        self._changed = threading.Condition()
        self._asked: dict[int, int] = {}  # for each epoch, the first index that was not requested
        self._closed = False

    def offer(self, batch: FeedBatch) -> None:
        """Add a batch. It is mapped at once, so the sender may drop the blob when all ranks have it."""
        if batch.name != self.name:
            return
        value = _END if batch.end else unflatten(batch.structure, self._blobs.get_arrays(batch.arrays))
        with self._changed:
            self._arrived[batch.epoch, batch.index] = value
            self._changed.notify_all()

    def begin(self, epoch: int, up_to: int = FEED_WINDOW) -> None:
        """Request the first `up_to` batches of `epoch` and drop those of earlier epochs."""
        self._forget(lambda key: key[0] < epoch)
        self._ask(epoch, up_to)

    def take(self, epoch: int, index: int) -> Any:
        """Wait for a batch, remove it, and return it as NumPy arrays.

        Raises:
            IndexError: The epoch has no such batch.
            WorkerError: The feed was closed.
        """
        value = self.peek(epoch, index)
        self._forget(lambda key: key[0] == epoch and key[1] <= index)
        self._ask(epoch, index + 1 + FEED_WINDOW)
        return value

    def peek(self, epoch: int, index: int) -> Any:
        """Return a batch as `take` does, without removing it."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._is_drawn(epoch, index))
            if self._closed:
                raise WorkerError("the job ended before the client sent all data")
            value = self._arrived.get((epoch, index), _END)
        if value is _END:
            raise IndexError(f"no such batch in this epoch. Received: {index}")
        return value

    def close(self) -> None:
        """Make waiting calls raise WorkerError: no more batches will arrive."""
        with self._changed:
            self._closed = True
            self._arrived.clear()
            self._changed.notify_all()

    def _is_drawn(self, epoch: int, index: int) -> bool:
        return (epoch, index) in self._arrived or any(
            value is _END and at[0] == epoch and at[1] <= index for at, value in self._arrived.items()
        )

    def _forget(self, old: Callable[[tuple[int, int]], bool]) -> None:
        with self._changed:
            gone = [key for key, value in self._arrived.items() if old(key) and (value is not _END)]
            for key in gone:
                del self._arrived[key]

    def _ask(self, epoch: int, up_to: int) -> None:
        if up_to > self._asked.get(epoch, 0):
            self._asked[epoch] = up_to
            self._want(FeedWanted(name=self.name, epoch=epoch, up_to=up_to))


class FeedSource:
    """A Source of a Feed's batches. An epoch can be read once."""

    batch_size: int | None = None
    samples: int | None = None
    reads_once = True

    def __init__(self, data: FeedData, feed: Feed, blobs: Blobs, first: int) -> None:
        self.element_spec = cloudpickle.loads(blobs.get(data.spec))
        self.steps = data.steps if data.steps > 0 else None
        self._epochs, self._feed, self._first = epochs.DrawnEpochs(data), feed, first

    def count(self, epoch: int) -> int | None:
        """Implement Source. The client's data may end before, as they may for Keras."""
        return self._epochs.count(epoch)

    def first_batch(self) -> Batch:
        """Implement Source."""
        self._feed.begin(self._first, 1)  # callbacks of the epoch's begin may change the others
        return _tensors(self._feed.peek(self._first, 0), self.element_spec)

    def slices(self, epoch: int, rank: int, size: int) -> Dataset:
        """Implement Source."""
        composite = any(not isinstance(s, tf.TensorSpec) for s in tf.nest.flatten(self.element_spec) if s is not None)

        def draw() -> Iterator[tuple[Any, Any]]:
            steps = 0
            self._feed.begin(epoch)
            for batch in _until_end(lambda index: self._feed.take(epoch, index)):
                if composite:
                    yield source.cut_batch(_tensors(batch, self.element_spec), rank, size)
                else:
                    yield _cut(batch, rank, size)
                steps += 1
            self._epochs.over(epoch, steps)

        spec, share = tf.nest.map_structure(source.open_leaf, self.element_spec), tf.TensorSpec([2], tf.int64)
        whole = tf.data.Dataset.from_generator(draw, output_signature=(spec, share))
        return whole.prefetch(1)

    def reader(self, epoch: int) -> ReadBatch:
        """Implement Source."""
        self._feed.begin(epoch)
        return lambda index: _tensors(self._feed.take(epoch, index), self.element_spec)


def _until_end(take: Callable[[int], Any]) -> Iterator[Any]:
    index = 0
    while True:
        try:
            batch = take(index)
        except IndexError:
            return
        yield batch
        index += 1


def _cut(batch: Any, rank: int, size: int) -> tuple[Any, Any]:
    """Cut a batch of arrays as fdt/data/source.py does; the parts are views, not copies."""
    total = next(len(leaf) for leaf in tf.nest.flatten(batch) if np.ndim(leaf))
    if any(len(leaf) != total for leaf in tf.nest.flatten(batch) if np.ndim(leaf)):
        raise ValueError(OTHER_ROWS)
    part = epochs.cut(np.array([0]), np.array([total]), rank, size)
    low, high = int(part.low[0]), int(part.high[0])
    return tf.nest.map_structure(lambda leaf: leaf[low:high] if np.ndim(leaf) else leaf, batch), part.share[0]


def _tensors(batch: Any, spec: Any) -> Batch:
    """Return `batch` as tensors; a ragged or sparse tensor arrives as its components (client_shim/feed.py)."""

    def whole(spec: Any, leaf: Any) -> Any:
        if leaf is None:
            return None
        if spec is None or isinstance(spec, tf.TensorSpec):
            return tf.constant(leaf)
        return tf.nest.pack_sequence_as(spec, [tf.constant(part) for part in leaf], expand_composites=True)

    with tf.device("CPU:0"):
        return tf.__internal__.nest.map_structure_up_to(spec, whole, spec, batch)
