"""The epoch's batches, for workers that all read from one place."""

from typing import Any

from fdt.data import Batch, Source
from fdt.data.arrays import ArraySource


class SharedBatches:
    """SharedBatches by number. Arrays are read when they are computed on; what comes in an order is read once, in
    order.

    Of the latter, those dealt to workers that have not come to them yet are kept: `LOOKAHEAD`
    (nfdt/server/scheduler.py)
    for each worker at most.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._epoch, self._next = -1, 0
        self._reader: Any = None
        self._kept: dict[int, Batch] = {}

    def look(self, epoch: int, index: int) -> None:
        """Raises IndexError when there is no batch `index`."""
        if isinstance(self._source, ArraySource):
            return
        if epoch != self._epoch:
            self._epoch, self._next, self._reader, self._kept = epoch, 0, self._source.reader(epoch), {}
        while self._next <= index:
            self._kept[self._next] = self._reader.read(self._next)
            self._next += 1
        if index not in self._kept:
            raise IndexError(f"no such batch in this epoch. Received: {index}")

    def take(self, epoch: int, index: int) -> Batch:
        if isinstance(self._source, ArraySource):
            return self._source.read(epoch, index)
        self.look(epoch, index)
        return self._kept.pop(index)
