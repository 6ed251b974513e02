"""The source of a tf.data pipeline that every rank rebuilds.

Each rank reads the whole pipeline and keeps its slice of every batch. So ranks exchange nothing. Where it is proven
that batches stay the same, a rank maps only the rows of its slice (fdt/data/division.py). Otherwise every rank does all
of the pipeline's work, and a pipeline slower than the training step does not get faster with more ranks.

A shuffle draws a new order for each new iterator, so the order of a pass depends on the seeds and on how many iterators
were made before: by the script, and by an undivided `fit`. A rank that needs a later pass first makes the iterators
that it missed; one that needs an earlier pass rebuilds the pipeline. A worker's `fit` gets a SinglePass,
because the iterators that it makes itself must not count.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import cloudpickle
import tensorflow as tf

from fdt.blobs import Blobs
from fdt.data import division, pipeline, source
from fdt.data.epochs import EpochBoundary, Epochs, iterators_before
from fdt.data.pipeline import Parts
from fdt.data.source import ReadBatch, as_is, deleted_apart
from fdt.job import GraphData
from fdt.typing import Batch, Dataset


class GraphSource:
    """Batches of a dataset; as in Keras, each element of the dataset is a batch.

    Args:
        data: The pipeline.
        blobs: The store of its graph and arrays.
        steps: `steps_per_epoch`, 0 for none.
        first: `initial_epoch`.
        boundary: The behavior at the end of a pass that `steps` divides.
    """

    def __init__(self, data: GraphData, blobs: Blobs, *, steps: int, first: int, boundary: EpochBoundary) -> None:
        self.element_spec = cloudpickle.loads(blobs.get(data.spec))
        constants = blobs.get_arrays(data.constants) if data.constants.id else []
        self._parts, self._seed = Parts(bytes(blobs.get(data.graph)), constants), data.seed
        self._divided_rows = data.divided_rows
        self._first, self._take = first, steps
        self._batches, self._iterators = data.cardinality, data.iterators
        self._goes_on = bool(steps) and boundary is not EpochBoundary.ANEW
        self._plan = Epochs(data.cardinality, steps, first, boundary=boundary) if data.cardinality >= 0 else None
        self._boundary = boundary
        self._caches = b"CacheDataset" in self._parts.graph
        in_order = bool(steps) or boundary is not EpochBoundary.ANEW  # a whole validation is a sum over its rows
        self._read = pipeline.read_to_draw(self._parts) if in_order else 0
        self._walkers: dict[tuple[int, int] | None, _PassReader] = {}  # by (rank, size); None: for readers

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch, where tf.data gives a static shape: then every batch is full."""
        return source.static_rows(self.element_spec)

    @property
    def samples(self) -> int | None:
        """Implement Source."""
        return self._plan.batches * self.batch_size if self._plan and self.batch_size else None

    @property
    def steps(self) -> int | None:
        """Implement Source."""
        return self._plan.count(self._first) if self._plan else self._take or None

    @property
    def reads_once(self) -> bool:
        """Implement Source."""
        return self._goes_on

    def count(self, epoch: int) -> int | None:
        """Implement Source."""
        return self._plan.count(epoch) if self._plan else self._take or None

    def first_batch(self) -> Batch:
        """Return the first batch of the first epoch from a separate pipeline: the source does not advance."""
        return next(deleted_apart(iter(self._whole())))

    def slices(self, epoch: int, rank: int, size: int) -> Dataset:
        """Implement Source."""
        if self._divided_rows:
            pass_reader = self._pass_reader((rank, size), lambda: self._divided(rank, size), _ahead)
        else:
            pass_reader = self._pass_reader(
                (rank, size), self._build, lambda whole: _ahead(source.part(whole, rank, size))
            )
        return pass_reader.epoch(epoch)

    def reader(self, epoch: int) -> ReadBatch:
        """Implement Source."""
        return _in_order(self._pass_reader(None, self._whole, _ahead).read(epoch))

    def _pass_reader(
        self, key: tuple[int, int] | None, build: Callable[[], Dataset], decorate: Callable[[Dataset], Dataset]
    ) -> "_PassReader":
        if key not in self._walkers:
            passes = _Passes(build, self._before, self._take, caches=self._caches, read=self._read)
            kind = _LongPassReader if self._goes_on else _PassReader
            self._walkers[key] = kind(
                passes, decorate, self._take, self._first, again=self._boundary is EpochBoundary.SHORT
            )
        return self._walkers[key]

    def _before(self, number: int) -> int:
        """Return how many iterators of the dataset the script makes before that of pass `number`."""
        return self._iterators + iterators_before(number, self._batches, self._take, self._boundary)

    def _whole(self) -> Dataset:
        """Return the dataset of whole batches."""
        return self._divided(0, 1).map(_batch_of) if self._divided_rows else self._build()

    def _build(self) -> Dataset:
        return pipeline.put_together(self._parts, self.element_spec, self._seed)

    def _divided(self, rank: int, size: int) -> Dataset:
        """Return the dataset of (batch, share) of a pipeline that the client has divided."""
        rows = division.width(self._divided_rows, size)
        numbers = {division.RANK: rank, division.SIZE: size, division.WIDTH: rows}
        spec = source.slice_spec(self.element_spec, rank, size), tf.TensorSpec([2], tf.int64)
        return pipeline.put_together(self._parts, spec, self._seed, numbers)


def _ahead(batches: Dataset) -> Dataset:
    return batches.prefetch(tf.data.AUTOTUNE)


@as_is
def _batch_of(batch: Batch, share: Any) -> Batch:
    return batch


class _Passes:
    """The pipeline, positioned so that its next iterator reads the requested pass.

    Args:
        build: Builds the pipeline.
        before: Returns the number of iterators that are made before that of a pass; passes count from 0.
        take: The batches that are read of a pass; 0: all.
        caches: Whether the pipeline keeps the elements of the first pass that is read.
        read: The elements of a pass that draw its orders when they are read.
    """

    def __init__(
        self, build: Callable[[], Dataset], before: Callable[[int], int], take: int, *, caches: bool, read: int
    ) -> None:
        self._build, self._before, self._take = build, before, take
        self._caches, self._read = caches, read
        self._dataset, self._made = build(), 0

    def dataset(self, number: int) -> Dataset:
        """Return the pipeline for pass `number`, of which the caller makes one iterator."""
        wanted = self._before(number)
        if wanted < self._made:
            self._dataset, self._made = self._build(), 0
        passes = {self._before(earlier) for earlier in range(number if self._caches or self._read else 0)}
        for made in range(self._made, wanted):
            missed = deleted_apart(iter(self._dataset))
            if made in passes:
                count = pipeline.ALL if self._caches and made == self._before(0) else self._read
                _drain(islice(missed, min(count, self._take or count)))  # a cache keeps the order of pass 0
        self._made = wanted + 1
        return self._dataset


class _PassReader:
    """Begins a pass with every epoch, and takes `take` of its batches, 0 for all. `first`: the first epoch."""

    def __init__(
        self, passes: _Passes, decorate: Callable[[Dataset], Dataset], take: int, first: int, *, again: bool
    ) -> None:
        self._passes, self._decorate, self._count = passes, decorate, take
        self._first, self._again = first, again
        self._decorated: tuple[Dataset, Dataset] | None = None  # a pipeline and its batches

    def epoch(self, epoch: int) -> Dataset:
        """Return the epoch's batches, of which the caller makes one iterator."""
        whole = self._passes.dataset(epoch - self._first)
        if self._decorated is None or self._decorated[0] is not whole:
            self._decorated = whole, self._decorate(whole.take(self._count) if self._count else whole)
        return self._decorated[1]

    def read(self, epoch: int) -> Any:
        """Return an iterator of the epoch; the caller may stop before its end."""
        return deleted_apart(iter(self.epoch(epoch)))


class _LongPassReader(_PassReader):
    """Continues a begun pass for `take` more batches, as Keras does with `steps_per_epoch`.

    With `again`, a pass that ends is followed by another one.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._next, self._number = self._first, 0  # epoch, pass
        self._iterator: Any = None
        self._reading: Any = ()

    def epoch(self, epoch: int) -> Dataset:
        if epoch < self._next:
            self._next, self._number, self._iterator = self._first, 0, None
        for _ in range(self._next, epoch):
            _drain(self._go_on())  # a later epoch is reached only by reading the epochs before it
        self._next = epoch + 1
        return self._go_on()

    def read(self, epoch: int) -> Any:
        _drain(self._reading)  # batches of the last epoch that other workers took
        self._reading = super().read(epoch)
        return self._reading

    def _go_on(self) -> Dataset:
        head = None if self._iterator is None else self._iterator.get_next_as_optional()
        if head is None or (self._again and not bool(head.has_value())):
            self._iterator = deleted_apart(iter(self._decorate(self._passes.dataset(self._number))))
            self._number += 1
            head = self._iterator.get_next_as_optional()
        return _rest(head, self._iterator, self._count - 1)


def _rest(head: Any, iterator: Any, count: int) -> Dataset:
    """Return `head` and up to `count` more elements of an iterator that later calls continue."""

    @as_is
    def draw(_: Any) -> Any:
        return iterator.get_next_as_optional()

    @as_is
    def present(item: Any) -> Any:
        return item.has_value()

    @as_is
    def value(item: Any) -> Any:
        return item.get_value()

    more = tf.data.Dataset.range(count).map(draw)
    return tf.data.Dataset.from_tensors(head).concatenate(more).take_while(present).map(value)


def _in_order(batches: Iterator[Batch]) -> ReadBatch:
    """Return a function that reads the batches before the wanted one, too: a pipeline has no random access."""
    position = 0

    def read(index: int) -> Batch:
        nonlocal position
        if index < position:
            raise ValueError(f"batches of a pipeline must be read in rising order. Received: {index} after {position}")
        for batch in batches:
            position += 1
            if position > index:
                return batch
        raise IndexError(f"no such batch in this epoch. Received: {index}")

    return read


def _drain(iterable: Any) -> None:
    for _ in iterable:
        pass
