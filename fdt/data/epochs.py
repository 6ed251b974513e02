"""The rows of each batch of each epoch: pure arithmetic, the same on every rank and in both engines.

A pass reads all the data once, in one order. Without `steps_per_epoch`, an epoch is a pass. With it, Keras 3 continues
the pass where the last epoch stopped and shortens the epoch that reaches the end of the pass (EpochIterator), while
tf_keras continues with the next pass (DataHandler). Every validation starts a new pass.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fdt.job import FeedData

Rows = npt.NDArray[np.int64]


class Span(NamedTuple):
    """`batches` batches of one pass, from batch `first` on."""

    data_pass: int  # number of the pass, which seeds its order
    first: int
    batches: int


class EpochBoundary(Enum):
    """The behavior at the end of a pass when `steps_per_epoch` is given."""

    SHORT = "short"  # Keras 3: the epoch ends early, and the next begins a new pass
    JOINED = "joined"  # tf_keras: the epoch continues in the next pass, up to `passes` passes
    ANEW = "anew"  # validation: every epoch begins a new pass


@dataclass(frozen=True)
class Epochs:
    """The plan of a whole `fit`.

    Attributes:
        batches: Batches of one pass.
        steps: `steps_per_epoch`, 0 for none.
        first: `initial_epoch`.
        passes: Passes in all, for JOINED (tf_keras repeats arrays as often as there are epochs, datasets never).
        boundary: The behavior at the end of a pass.
    """

    batches: int
    steps: int = 0
    first: int = 0
    passes: int = 1
    boundary: EpochBoundary = EpochBoundary.SHORT

    def spans(self, epoch: int) -> list[Span]:
        """Return the batches of `epoch`, in order. Empty when the data have ended (tf_keras only)."""
        if not self.steps or self.boundary is EpochBoundary.ANEW:
            return [Span(epoch, 0, min(self.steps or self.batches, self.batches))]
        if self.boundary is EpochBoundary.JOINED:
            return self._joined(epoch)
        epochs_per_pass = -(-self.batches // self.steps)
        done, part = divmod(max(epoch - self.first, 0), epochs_per_pass)
        begin = part * self.steps
        return [Span(self.first + done, begin, min(self.steps, self.batches - begin))]

    def count(self, epoch: int) -> int:
        """Return the number of steps that `epoch` has in fact."""
        return sum(span.batches for span in self.spans(epoch))

    def _joined(self, epoch: int) -> list[Span]:
        begin = max(epoch - self.first, 0) * self.steps
        end = min(begin + self.steps, self.batches * self.passes)
        spans = []
        while begin < end:
            done, part = divmod(begin, self.batches)
            count = min(self.batches - part, end - begin)
            spans.append(Span(self.first + done, part, count))
            begin += count
        return spans


class DrawnEpochs:
    """The steps of the epochs of batches that the client draws.

    A pass may be shorter than Keras knows: the data may have lost rows. Keras 3 begins a new pass after that epoch.
    """

    def __init__(self, data: FeedData) -> None:
        self._length, self._steps, self._first = data.length, max(data.steps, 0), data.first_epoch

    def count(self, epoch: int) -> int | None:
        """Return the steps of an epoch; None: until the data end."""
        if self._steps and self._length:
            return Epochs(self._length, self._steps, self._first).count(epoch)
        return self._steps or None

    def over(self, epoch: int, steps: int) -> bool:
        """Note that the data of an epoch have ended after so many steps. Return whether more were expected."""
        expected = self.count(epoch)
        short = expected is not None and steps < expected
        if short:
            self._first = epoch + 1
        return short


def iterators_before(data_pass: int, batches: int, steps: int, boundary: EpochBoundary) -> int:
    """Return how many iterators of a dataset an undivided `fit` makes before that of its pass `data_pass`.

    Keras 3 makes another one at the end of a pass whose length it knows, unless that is the next pass's (3.15,
    trainers/epoch_iterator.py). tf_keras makes one before its first epoch (2.21, engine/data_adapter.py).

    Args:
        data_pass: The pass, counted from 0.
        batches: Batches of one pass; negative: unknown or infinite.
        steps: `steps_per_epoch`, 0 for none.
        boundary: The behavior at the end of a pass.
    """
    if steps or boundary is EpochBoundary.ANEW:
        return data_pass
    if boundary is EpochBoundary.JOINED:
        return data_pass + 1
    return 2 * data_pass if batches >= 0 else data_pass


def iterators_of(epochs: int, batches: int, steps: int, boundary: EpochBoundary) -> int:
    """Return how many iterators of a dataset an undivided `fit` of `epochs` epochs makes; see `iterators_before`."""
    if not steps:
        return iterators_before(epochs, batches, steps, boundary)
    ends = boundary is EpochBoundary.SHORT and batches > 0  # a pass that ends is followed by another one
    return 1 + (epochs // -(-batches // steps) if ends else 0)


def locate(spans: list[Span], index: int) -> tuple[int, int]:
    """Return (pass, batch within the pass) of an epoch's batch `index`. Raises IndexError after the end."""
    for span in spans:
        if index < span.batches:
            return span.data_pass, span.first + index
        index -= span.batches
    raise IndexError("no such batch in this epoch")


def permutation(rows: int, seed: int, data_pass: int) -> npt.NDArray[np.signedinteger]:
    """Return the rows of a pass in its order, a function of the arguments alone; int32 if that suffices, else int64."""
    order = np.random.Generator(np.random.PCG64([seed, data_pass])).permutation(rows)
    return order.astype(np.int32) if rows <= np.iinfo(np.int32).max else order


def fresh_rows(rows: int, size: int, seed: int, epoch: int, index: int) -> Rows:
    """Return the rows of a batch sampled at random without repeats (`--partition random-sampling`)."""
    generator = np.random.Generator(np.random.PCG64([seed, epoch, index]))
    return generator.choice(rows, min(size, rows), replace=False)


class Cut(NamedTuple):
    """A rank's part of some global batches, one entry for each batch: rows [low, high), of which `share[0]` count."""

    low: Rows
    high: Rows
    share: npt.NDArray[np.int64]  # (batches, 2): samples of the rank, samples of the global batch


def bounds(rows: int, batch: int, first: int, count: int) -> tuple[Rows, Rows]:
    """Return the first and stop row of `count` batches from `first` on; the last may be shorter than `batch`."""
    start = np.arange(first, first + count, dtype=np.int64) * batch
    return start, np.minimum(start + batch, rows)


def cut(start: Rows, stop: Rows, rank: int, size: int) -> Cut:
    """Return a rank's contiguous part of each batch.

    The parts of all ranks, in order, are the batch. A rank without a sample gets the batch's first row with a share of
    0, because a step needs some input.

    Args:
        start: (batches,) int64: the first row of each batch.
        stop: (batches,) int64: the stop row of each batch.
        rank: The rank.
        size: The world size.
    """
    total = stop - start
    low, high = start + total * rank // size, start + total * (rank + 1) // size
    mine = high - low
    idle = mine == 0
    low, high = np.where(idle, start, low), np.where(idle, start + 1, high)
    return Cut(low, high, np.stack([mine, total], axis=-1))
