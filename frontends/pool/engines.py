"""The engines of a pool: each job gets one with as many workers as it has slots; engines stay warm between jobs."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.launch.hosts import Host
from fdt.service.server import Engine


@dataclass(frozen=True)
class Allocation:
    """The slots of one engine. `blobs`: the store that all engines of the pool share."""

    slots: tuple[int, ...]
    blobs: LocalBlobs

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self.slots)

    def hosts(self, hosts: Sequence[Host], total: int) -> list[Host]:
        """Return the hosts of these slots, where slot 0 is the first one of the first host.

        All `total` slots of the pool have all hosts: parameter servers take the slots that workers leave.
        """
        if not hosts or self.workers == total:
            return list(hosts)
        names = [host.name for host in hosts for _ in range(host.slots)]
        chosen = [names[slot] for slot in self.slots]
        return [Host(name, len(list(same))) for name, same in groupby(chosen)]


MakeEngine = Callable[[Path, Allocation], Engine]


class EnginePool:
    """Engines on disjoint slots. Thread-safe.

    Args:
        slots: The number of slots.
        make: Makes an engine, given the directory of its logs and its slots.
        logs: The directory of the engines' logs.
    """

    def __init__(self, slots: int, make: MakeEngine, logs: Path) -> None:
        self.slots, self.logs, self.blobs = slots, logs, LocalBlobs.create()
        self._make, self._closed = make, False
        self._changed = threading.Condition()
        self._free = set(range(slots))  # slots without an engine
        self._idle: dict[tuple[int, ...], Engine] = {}  # by slots, the longest idle first
        self._engines: dict[tuple[int, ...], Engine] = {}  # all, by slots

    @contextlib.contextmanager
    def engine(self, workers: int) -> Iterator[Engine]:
        """Yield an engine with so many workers, which no other job has within the context.

        A warm engine of that size is preferred. Otherwise idle ones are ended until there are enough free slots.

        Raises:
            UserError: Members cannot be started.
        """
        slots, engine = self._taken(workers)
        try:
            engine = engine or self._made(slots)
            yield engine
        finally:
            with self._changed:
                if engine is None:
                    self._free.update(slots)
                else:
                    self._idle[slots] = engine
                self._changed.notify_all()

    def stop(self) -> None:
        """End all engines and remove the blobs. A second call has no effect."""
        with self._changed:
            self._closed = True
        threads = [threading.Thread(target=engine.stop) for engine in list(self._engines.values())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.blobs.close()

    def _taken(self, workers: int) -> tuple[tuple[int, ...], Engine | None]:
        """Take slots; return them and their engine, or None where one must be made."""
        while True:
            with self._changed:
                for slots in [each for each in self._idle if len(each) == workers]:
                    return slots, self._idle.pop(slots)
                if len(self._free) >= workers:
                    slots = tuple(sorted(self._free)[:workers])
                    self._free.difference_update(slots)
                    return slots, None
                if not self._idle:  # another job's thread is ending an engine
                    self._changed.wait()
                    continue
                slots = next(iter(self._idle))
                del self._idle[slots]
                ending = self._engines.pop(slots)
            try:
                ending.stop()
            finally:
                with self._changed:
                    self._free.update(slots)
                    self._changed.notify_all()

    def _made(self, slots: tuple[int, ...]) -> Engine:
        directory = self.logs if len(slots) == self.slots else self.logs / f"slot-{slots[0]}"
        directory.mkdir(mode=0o700, exist_ok=True)
        engine = self._make(directory, Allocation(slots, self.blobs))
        with self._changed:
            closed = self._closed
            self._engines[slots] = engine
        if closed:  # `stop` does not know it
            engine.stop()
            raise UserError("the server is stopping")
        return engine
