"""Comparison of batches between ranks at some steps, because each rank takes its rows of a batch that it draws itself.

So all ranks must draw the same batch. They draw others where files are listed in another order on another host, or
where a seed comes from something that every process has for itself.
"""

import functools
import math
import weakref
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from client_shim.replica.steps import where
from fdt.data.pipeline import is_random
from fdt.typing import Array, Dataset, Tensor
from replica.exchange import GroupedExchange
from replica.placement import PARTIAL
from replica.tensors import local_array

COMPARED, COMPARED_EVERY = (1, 2, 10, 100), 1000  # steps
_ELEMENTS = 10_000  # of a tensor that are compared, evenly spread
_ROUNDING = 1e-4  # other processors round otherwise
DIFFERENT = (
    "warning: ranks drew different batches for step {step} ({where}), and each trains on its rows of its own batch. "
    "Sort lists of files, and take no seed from a process or a host"
)


def is_compared(step: int) -> bool:
    """Return whether ranks compare what they have at this step; the first is 1."""
    return step in COMPARED or step % COMPARED_EVERY == 0


class BatchComparison:
    """A number for all tensors that are divided before a step that is compared.

    Args:
        exchange: The collectives.
    """

    def __init__(self, exchange: GroupedExchange) -> None:
        self._exchange = exchange
        self._sum, self._where = 0.0, ""  # the number is NaN for batches that are not compared
        self._over = exchange.size == 1  # nothing is compared any more
        self._watches = not self._over
        self._asked: weakref.ref[Dataset] | None = None  # the dataset whose maps were looked at last
        self._random = False

    def add(self, tensor: Tensor) -> None:
        """Add a whole tensor, which is about to be divided, if the next step is compared."""
        if self._watches and not math.isnan(self._sum):
            self._sum, self._where = self._sum + _number_of(local_array(tensor)), where()

    def drawn(self, dataset: Dataset, rows: Callable[[], Sequence[Tensor]] = lambda: ()) -> None:
        """Note that a batch is drawn. That of a dataset with random maps is not compared: their threads draw in turn.

        Args:
            dataset: The dataset, or None if it is not known.
            rows: Returns tensors to add, because none of the batch's is whole.
        """
        if not self._watches or math.isnan(self._sum):
            return
        if dataset is None or self._is_random(dataset):
            self._sum = math.nan
            return
        for tensor in rows():
            self.add(tensor)

    def _is_random(self, dataset: Dataset) -> bool:
        if self._asked is None or self._asked() is not dataset:
            self._asked, self._random = weakref.ref(dataset), is_random(dataset)
        return self._random

    def step(self, number: int) -> str | None:
        """Compare the batches of step `number`, of every rank. Return a line if they differ, on each rank."""
        differs = False
        if self._watches:
            first = self._exchange.rank_0s("batches", [np.asarray([self._sum])])[0]
            off = np.abs(first - self._sum) > _ROUNDING
            differs = bool(self._exchange.replicated("differing batches", [off.astype(np.int64)], [PARTIAL])[0])
        self._over |= differs
        self._sum, self._watches = 0.0, is_compared(number + 1) and not self._over
        return DIFFERENT.format(step=number, where=self._where) if differs else None


def _number_of(values: Array) -> float:
    """Return a number from -1 to 1 that other values, or another order of them, are unlikely to have."""
    if values.dtype.kind == "O":  # strings
        return zlib.crc32(b"\0".join(np.ravel(values))) / 2**32
    if values.dtype.itemsize < 4 and values.dtype.kind not in "iub":
        return 0.0  # 16 bits round too coarsely
    flat = np.ravel(values)
    chosen = (np.abs(flat) if flat.dtype.kind == "c" else flat)[:: len(flat) // _ELEMENTS + 1].astype(np.float64)
    chosen = np.nan_to_num(chosen, posinf=1.0, neginf=-1.0)
    return float(chosen @ _weights(len(chosen)) / (np.abs(chosen).sum() or 1.0))


@functools.lru_cache(maxsize=8)
def _weights(count: int) -> Array:
    return np.random.Generator(np.random.PCG64(0)).uniform(-1, 1, count)
