"""The interfaces of a job's data: sources of batches, whatever kind of data they read."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import tensorflow as tf

Batch = Any  # the argument of Keras's train_step: x, (x,), (x, y) or (x, y, sample_weight), of tf tensors
Dataset = Any  # tf.data.Dataset

_Function = TypeVar("_Function", bound=Callable[..., Any])


def as_is(function: _Function) -> _Function:
    """Exclude a function of TensorFlow ops from AutoGraph's conversion."""
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


class Reader(Protocol):
    """Whole batches of one epoch, for engines that give a worker whole batches."""

    def read(self, index: int) -> Batch:
        """Return batch `index` of the epoch.

        Args:
            index: Higher than in the call before.

        Raises:
            IndexError: The epoch has no such batch.
        """
        ...


class Source(Protocol):
    """The batches of a job. Every rank that opens the same data reads the same batches in the same order."""

    @property
    def steps(self) -> int | None:
        """Steps of the first epoch; None while unknown."""
        ...

    @property
    def samples(self) -> int | None:
        """Rows of the data; None where unknown."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Rows of a full batch; None where unknown."""
        ...

    @property
    def element_spec(self) -> Any:
        """The tf.TypeSpec structure of a batch, its first dimension open."""
        ...

    def count(self, epoch: int) -> int | None:
        """Return the steps of `epoch`, fewer than `steps` where the data end within it; None while unknown."""
        ...

    @property
    def reads_once(self) -> bool:
        """Whether an epoch cannot be read again without reading all epochs before it, or at all."""
        ...

    def first_batch(self) -> Batch:
        """Return the first global batch of the first epoch. The source does not advance."""
        ...

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
        ...

    def reader(self, epoch: int) -> Reader:
        """Return a reader of whole batches of `epoch`."""
        ...


def in_memory(data: Dataset) -> Dataset:
    """Read all elements of `data` once, now, and return a dataset that can be read many times."""
    kept = list(data)
    return tf.data.Dataset.from_generator(lambda: iter(kept), output_signature=data.element_spec)
