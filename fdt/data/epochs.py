"""Which rows make which batch of which epoch: pure arithmetic, the same on every rank and in both engines.

A *pass* is one walk over all the data, in one order. Without `steps_per_epoch` an epoch is a pass. With it, Keras 3
goes on in the pass where the last epoch stopped and cuts the epoch that meets the pass's end short (EpochIterator),
while tf_keras goes straight on into the next pass (DataHandler). A validation starts anew each time.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


class Span(NamedTuple):
    """`batches` batches of one pass, from batch `first` on."""

    data_pass: int  # number of the pass; seeds its order
    first: int
    batches: int


class EpochBoundary(Enum):
    """What happens at a pass's end when `steps_per_epoch` is given."""

    SHORT = "short"  # Keras 3: the epoch ends early, the next begins a new pass
    JOINED = "joined"  # tf_keras: the epoch goes on in the next pass, for as many passes as there are epochs
    ANEW = "anew"  # validation: every epoch begins a new pass


@dataclass(frozen=True)
class Epochs:
    """The plan of a whole `fit`.

    `batches`: batches of one pass. `steps`: steps_per_epoch, 0 for none. `first`: initial_epoch. `passes`: how many
    there are in all where they are joined (tf_keras repeats arrays as often as there are epochs, datasets never).
    """

    batches: int
    steps: int = 0
    first: int = 0
    passes: int = 1
    boundary: EpochBoundary = EpochBoundary.SHORT

    def spans(self, epoch: int) -> list[Span]:
        """The batches of `epoch`, in order. Empty when the data ran out (tf_keras only)."""
        if not self.steps or self.boundary is EpochBoundary.ANEW:
            return [Span(epoch, 0, min(self.steps or self.batches, self.batches))]
        if self.boundary is EpochBoundary.JOINED:
            return self._joined(epoch)
        epochs_per_pass = -(-self.batches // self.steps)
        done, part = divmod(max(epoch - self.first, 0), epochs_per_pass)
        begin = part * self.steps
        return [Span(self.first + done, begin, min(self.steps, self.batches - begin))]

    def count(self, epoch: int) -> int:
        """Steps that `epoch` really has."""
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


def locate(spans: list[Span], index: int) -> tuple[int, int]:
    """(pass, batch within the pass) of an epoch's batch `index`. Raises IndexError behind the end."""
    for span in spans:
        if index < span.batches:
            return span.data_pass, span.first + index
        index -= span.batches
    raise IndexError("no such batch in this epoch")


def permutation(rows: int, seed: int, data_pass: int) -> npt.NDArray[np.signedinteger]:
    """The order of pass `data_pass`: a function of its arguments alone. 32-bit numbers where they do (half the
    memory)."""
    order = np.random.Generator(np.random.PCG64([seed, data_pass])).permutation(rows)
    return order.astype(np.int32) if rows <= np.iinfo(np.int32).max else order


def fresh_rows(rows: int, size: int, seed: int, epoch: int, index: int) -> Rows:
    """`--partition random-sampling`: a batch drawn afresh, without repeats inside it."""
    generator = np.random.Generator(np.random.PCG64([seed, epoch, index]))
    return generator.choice(rows, min(size, rows), replace=False)


class Cut(NamedTuple):
    """A rank's part of some global batches, one entry a batch: rows [low, high), of which `share[0]` count."""

    low: Rows
    high: Rows
    share: npt.NDArray[np.int64]  # (batches, 2): samples of mine, samples of the global batch


def bounds(rows: int, batch: int, first: int, count: int) -> tuple[Rows, Rows]:
    """Start and stop row of `count` batches from `first` on; the last may be shorter than `batch`."""
    start = np.arange(first, first + count, dtype=np.int64) * batch
    return start, np.minimum(start + batch, rows)


def cut(start: Rows, stop: Rows, rank: int, size: int) -> Cut:
    """Rank `rank` of `size` gets a contiguous part of each batch; all parts together are the batch, in order.

    A rank left with nothing gets the batch's first row with a share of 0, as a step needs something to run on.
    """
    total = stop - start
    low, high = start + total * rank // size, start + total * (rank + 1) // size
    mine = high - low
    idle = mine == 0
    low, high = np.where(idle, start, low), np.where(idle, start + 1, high)
    return Cut(low, high, np.stack([mine, total], axis=-1))
