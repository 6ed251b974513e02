"""Workers that no launcher of ours started: they joined a crew by themselves (`nfdt join`), and may leave it again."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fdt.supervise.outcome import Outcome

MOST = 256  # at once


@dataclass(frozen=True)
class WorkerJoined:
    """A guest has attached, and can be given the job."""


@dataclass(frozen=True)
class WorkerLeft:
    """A guest is gone, or was told to go."""

    how: str  # "left" | "lost" | "failed"
    why: str = ""


@runtime_checkable
class ElasticCoordinator(Protocol):
    """A Coordinator that takes guests. `rank`: behind those of the workers that the job began with."""

    def joined(self, rank: int, host: str) -> Outcome:
        """Give it the job, unless it has it already."""
        ...

    def left(self, rank: int, how: str, why: str = "") -> Outcome:
        """`how`, `why`: as in Left."""
        ...


class ElasticWorkers:
    """Which ranks are whose. A party is of those that came together; its event says that they are to go.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[int, threading.Event] = {}  # by rank

    def reserve(self, count: int, first: int) -> tuple[list[int], threading.Event]:
        """So many free ranks, `first` or higher. Raises ValueError when there would be too many guests."""
        with self._lock:
            free = [rank for rank in range(first, first + MOST) if rank not in self._groups]
            if not 1 <= count <= len(free):
                raise ValueError(f"1 to {len(free)} workers can join now, {MOST} in all. Received: {count}")
            group = threading.Event()
            self._groups.update(dict.fromkeys(free[:count], group))
            return free[:count], group

    def release(self, ranks: Sequence[int], group: threading.Event) -> list[int]:
        """Those of `ranks` that were still `group`'s. Its event is set."""
        with self._lock:
            gone = [rank for rank in ranks if self._groups.get(rank) is group]
            for rank in gone:
                del self._groups[rank]
        group.set()
        return gone

    def release_all(self) -> list[int]:
        with self._lock:
            groups, self._groups = self._groups, {}
        for group in groups.values():
            group.set()
        return list(groups)

    def __contains__(self, rank: int) -> bool:
        return rank in self._groups
