"""What a worker sees of a job's data, whatever kind it is."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import tensorflow as tf

Batch = Any  # what Keras's train_step takes: x, (x,), (x, y) or (x, y, sample_weight), of tf tensors
Dataset = Any  # tf.data.Dataset

_Function = TypeVar("_Function", bound=Callable[..., Any])


def as_is(function: _Function) -> _Function:
    """A function of TensorFlow ops that AutoGraph need not look at."""
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


class Reader(Protocol):
    """Whole batches of one epoch, for engines that deal whole batches."""

    def read(self, index: int) -> Batch:
        """Batch `index` of the epoch. Indexes rise from call to call. Raises IndexError behind the end."""
        ...


class Source(Protocol):
    """The batches of a job. Every rank that opens the same data gets the same batches in the same order."""

    @property
    def steps(self) -> int | None:
        """Steps of the first epoch; None while unknown."""
        ...

    @property
    def samples(self) -> int | None:
        """Rows of the data; None where they cannot be known."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Rows of a full batch; None where they cannot be known."""
        ...

    @property
    def element_spec(self) -> Any:
        """tf.TypeSpec structure of a batch, its first dimension open."""
        ...

    def count(self, epoch: int) -> int | None:
        """Steps of `epoch`: less than `steps` where the data end inside it; None while unknown."""
        ...

    @property
    def reads_once(self) -> bool:
        """Must an epoch be read a second time by way of all before it, or not at all?"""
        ...

    def first_batch(self) -> Batch:
        """The first batch of the first epoch, whole, to look at: the source does not move."""
        ...

    def slices(self, epoch: int, rank: int, size: int) -> Dataset:
        """Dataset of (batch, share) for one rank and one epoch.

        batch: the rank's contiguous part of each global batch. share: int64 [samples of mine, samples of the global
        batch]. A rank without a sample of its own gets a copy of the batch's first row, with share [0, B].
        All ranks get the same number of elements.
        """
        ...

    def reader(self, epoch: int) -> Reader: ...


def in_memory(data: Dataset) -> Dataset:
    """All elements of `data`, read now and once, to be read as often as is wanted."""
    kept = list(data)
    return tf.data.Dataset.from_generator(lambda: iter(kept), output_signature=data.element_spec)
