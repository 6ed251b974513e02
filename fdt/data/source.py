"""The interfaces of a job's data, and a rank's part of whole batches, cut in the TensorFlow graph."""

import contextlib
import functools
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import tensorflow as tf

from fdt.compat.tensorflow import dataset_ops
from fdt.errors import OTHER_ROWS
from fdt.typing import Batch, Dataset

# Returns batch `index` of an epoch, an index higher than in the call before. Raises IndexError: there is no such batch.
ReadBatch = Callable[[int], Batch]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def as_is(function: _Function) -> _Function:
    """Exclude a function of TensorFlow ops from AutoGraph's conversion."""
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


class SinglePass(dataset_ops.UnaryUnchangedStructureDataset):
    """A dataset for one call of `fit` or `evaluate`: all of its iterators are one, and so shuffle the data once.

    Both Keras make more iterators than they read.
    """

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset, dataset._variant_tensor)
        self._one: Any = None

    def __iter__(self) -> Any:
        self._one = self._one or deleted_apart(iter(self._input_dataset))
        return self._one


def deleted_apart(iterator: Any) -> Any:
    """Return `iterator`, an eager one of a dataset. When it is deleted, a thread deletes TensorFlow's part of it.

    This deletion waits for the thread that tunes the pipeline. In a part of all cases, that thread then sleeps on, as
    long again as the iterator has existed, 60 s at most: it may look for the end before TensorFlow 2.21 notes it
    (tensorflow/core/framework/model.cc, Model::OptimizeLoop). Ranks that wait for each other would all wait.

    A script's own iterators are not deleted so: it sees when a generator closes and a cached file is unlocked.
    """
    weakref.finalize(iterator, _deletions().put, iterator._iterator_resource)
    return iterator


HELD_S = 0.2  # between looks at those to delete that others hold


@functools.cache
def _deletions() -> "queue.SimpleQueue[Any]":
    """Return the queue of a thread that deletes what it gets. A finalizer may put at any time."""
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    own = _references([object()])[0]

    def delete() -> None:
        held: list[Any] = []
        while True:
            with contextlib.suppress(queue.Empty):
                held.append(ended.get(timeout=HELD_S if held else None))
            if not threading.main_thread().is_alive():  # Python ends: what this frame holds ends with the process
                threading.Event().wait()
            # Others hold some for a moment, such as the garbage collector, which would delete them in its own thread.
            held = [each for each, count in zip(held, _references(held), strict=True) if count > own]

    threading.Thread(target=delete, name="deletion of iterators", daemon=True).start()
    return ended


def _references(objects: list[Any]) -> list[int]:
    return [sys.getrefcount(each) for each in objects]


class Source(Protocol):
    """The batches of a job. Every rank that opens the same data reads the same batches in the same order."""

    @property
    def steps(self) -> int | None:
        """Steps of the first epoch; None while unknown."""

    @property
    def samples(self) -> int | None:
        """Rows of the data; None where unknown."""

    @property
    def batch_size(self) -> int | None:
        """Rows of a full batch; None where unknown."""

    @property
    def element_spec(self) -> Any:
        """The tf.TypeSpec structure of a batch, its first dimension open."""

    def count(self, epoch: int) -> int | None:
        """Return the steps of `epoch`, fewer than `steps` where the data are known to end within it; None: unknown.

        A step that is tried after the last batch would count in optimizer.iterations, as it does where Keras, too,
        does not know the steps.
        """

    @property
    def reads_once(self) -> bool:
        """Whether an epoch cannot be read again without reading all epochs before it, or at all."""

    def first_batch(self) -> Batch:
        """Return the first global batch of the first epoch. The source does not advance."""

    def slices(self, epoch: int, rank: int, size: int) -> Dataset:
        """Return one rank's part of one epoch.

        A rank without a sample of a global batch gets a copy of the batch's first row, with share [0, B]. All ranks get
        the same number of elements.

        Args:
            epoch: The epoch.
            rank: The rank.
            size: The world size.

        Returns:
            A dataset of (batch, share). batch: the rank's contiguous part of each global batch. share: int64 (2,), the
                samples
            of this rank and of the global batch.
        """

    def reader(self, epoch: int) -> ReadBatch:
        """Return a reader of whole batches of `epoch`, for engines that give a worker whole batches."""


def in_memory(data: Dataset) -> Dataset:
    """Read all elements of `data` once, now, and return a dataset that can be read many times."""
    kept = list(data)
    return tf.data.Dataset.from_generator(lambda: iter(kept), output_signature=data.element_spec)


def part(batches: Dataset, rank: int, size: int) -> Dataset:
    """Return (batch, share) for each batch: see Source.slices."""
    spread = isinstance(batches.element_spec, tuple)  # tf.data calls map functions with a tuple's items

    @as_is
    def cut(*element: Any) -> tuple[Batch, Any]:
        return cut_batch(element if spread else element[0], rank, size)

    return batches.map(cut, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def slice_spec(spec: Any, rank: int, size: int) -> Any:
    """Return the element_spec of a rank's slices of dense batches, static where that of the batches is."""

    def of_leaf(leaf: Any) -> Any:
        total = leaf.shape[0]
        rows = None if total is None else max(total * (rank + 1) // size - total * rank // size, 1)
        return tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(of_leaf, spec)


def cut_batch(batch: Batch, rank: int, size: int) -> tuple[Batch, Any]:
    """Cut a batch of tensors by the rule of `cut` in fdt/data/epochs.py. Scalar leaves go to every rank."""
    return cut_between(batch, rank, rank + 1, size)


def cut_between(batch: Batch, low: Any, high: Any, parts: int) -> tuple[Batch, Any]:
    """Return the rows from `low` / `parts` to `high` / `parts` of a batch, and their share.

    Without a row between, the result is the batch's first row, with share 0.

    Raises:
        tf.errors.InvalidArgumentError: A tensor of the batch has another number of rows than the first, as where zipped
            datasets end with batches of different sizes.
    """
    total = tf.cast(rows(batch), tf.int64)
    cut = [leaf for leaf in tf.nest.flatten(batch) if _has_rows(leaf)] if parts != 1 else []
    with tf.control_dependencies([_same_rows(leaf, total) for leaf in cut[1:]]):
        low, high = total * low // parts, total * high // parts
    share = tf.stack([high - low, total])
    idle = tf.equal(low, high)
    low, high = tf.where(idle, tf.zeros_like(low), low), tf.where(idle, tf.ones_like(high), high)
    return tf.nest.map_structure(lambda leaf: _cut_leaf(leaf, low, high, parts), batch), share


def rows(batch: Batch) -> Any:
    """Return the number of samples of a batch: the rows of its first tensor that is not a scalar."""
    return _rows_of(leading(batch))


def leading(batch: Batch) -> Any:
    """Return the first tensor of a batch that is not a scalar; `enumerate` puts a scalar index first."""
    return next(filter(_has_rows, tf.nest.flatten(batch)))


def static_rows(spec: Any) -> int | None:
    """Return the rows of a batch where its TypeSpec structure fixes them: then every batch is full. Otherwise None."""
    leaves = [each for each in tf.nest.flatten(spec) if isinstance(each, tf.TensorSpec)]
    return leaves[0].shape[0] if leaves and leaves[0].shape.rank else None


def open_leaf(spec: Any) -> Any:
    """Return the TypeSpec `spec` with any number of rows; None for None."""
    if spec is None or not spec.shape.rank:
        return spec
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)  # TensorSpec, SparseTensorSpec


def _has_rows(leaf: Any) -> bool:
    return leaf is not None and leaf.shape.rank != 0


def _rows_of(leaf: Any) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows(tf.int32)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return tf.shape(leaf)[0]


def _same_rows(leaf: Any, total: Any) -> Any:
    return tf.debugging.assert_equal(tf.cast(_rows_of(leaf), tf.int64), total, message=OTHER_ROWS)


def _cut_leaf(leaf: Any, low: Any, high: Any, parts: int) -> Any:
    if not _has_rows(leaf) or parts == 1:
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
