"""Batches of an epoch for simulated workers, which all read from one source."""

from typing import Any

from fdt.data import Batch, Source
from fdt.data.arrays import ArraySource


class SharedBatches:
    """Batches by number. Arrays are read when they are needed; a sequential source is read once, in order.

    Batches of a sequential source that are assigned to workers and not computed yet are kept: at most the `LOOKAHEAD`
    of nfdt/server/scheduler.py for each worker.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._epoch, self._next = -1, 0
        self._reader: Any = None
        self._kept: dict[int, Batch] = {}

    def look(self, epoch: int, index: int) -> None:
        """Read up to batch `index`. Raises IndexError if it does not exist."""
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
        """Return batch `index` and drop it."""
        if isinstance(self._source, ArraySource):
            return self._source.read(epoch, index)
        self.look(epoch, index)
        return self._kept.pop(index)
