"""Elastic workers: workers that no launcher of this run started. They join by `nfdt join` and may leave again."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fdt.supervise.outcome import Outcome

MOST = 256  # at once


@dataclass(frozen=True)
class WorkerJoined:
    """An elastic worker has attached and can be given the job."""


@dataclass(frozen=True)
class WorkerLeft:
    """An elastic worker has ended, or was asked to end."""

    how: str  # "left" | "lost" | "failed"
    why: str = ""


@runtime_checkable
class ElasticCoordinator(Protocol):
    """A Coordinator that accepts elastic workers. Their ranks follow those of the workers that the job began with."""

    def joined(self, rank: int, host: str) -> Outcome:
        """Give the worker the job, unless it has it already."""
        ...

    def left(self, rank: int, how: str, why: str = "") -> Outcome:
        """Take the worker out of the job; `how` and `why` as in WorkerLeft."""
        ...


class ElasticWorkers:
    """Ranks of elastic workers, grouped by joint arrival. A group's event asks it to leave. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[int, threading.Event] = {}  # by rank

    def reserve(self, count: int, first: int) -> tuple[list[int], threading.Event]:
        """Return `count` free ranks, `first` or higher, and their group's event.

        Raises:
            ValueError: There would be more than `MOST` elastic workers.
        """
        with self._lock:
            free = [rank for rank in range(first, first + MOST) if rank not in self._groups]
            if not 1 <= count <= len(free):
                raise ValueError(f"1 to {len(free)} workers can join now, {MOST} in all. Received: {count}")
            group = threading.Event()
            self._groups.update(dict.fromkeys(free[:count], group))
            return free[:count], group

    def release(self, ranks: Sequence[int], group: threading.Event) -> list[int]:
        """Free those of `ranks` that still belong to `group`, set its event, and return them."""
        with self._lock:
            gone = [rank for rank in ranks if self._groups.get(rank) is group]
            for rank in gone:
                del self._groups[rank]
        group.set()
        return gone

    def release_all(self) -> list[int]:
        """Free all ranks, set the events of all groups, and return the ranks."""
        with self._lock:
            groups, self._groups = self._groups, {}
        for group in groups.values():
            group.set()
        return list(groups)

    def __contains__(self, rank: int) -> bool:
        return rank in self._groups
