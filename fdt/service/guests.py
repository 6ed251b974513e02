"""Workers that no launcher of ours started: they joined a crew by themselves (`nfdt join`), and may leave it again."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fdt.service.outcome import Outcome

MOST = 256  # at once


@dataclass(frozen=True)
class Came:
    """A guest has attached, and can be given the job."""


@dataclass(frozen=True)
class Left:
    """A guest is gone, or was told to go."""

    how: str  # "left" | "lost" | "failed"
    why: str = ""


@runtime_checkable
class Welcoming(Protocol):
    """A Coordinator that takes guests. `rank`: behind those of the workers that the job began with."""

    def joined(self, rank: int, host: str) -> Outcome:
        """Give it the job, unless it has it already."""
        ...

    def left(self, rank: int, how: str, why: str = "") -> Outcome:
        """`how`, `why`: as in Left."""
        ...


class Guests:
    """Which ranks are whose. A party is of those that came together; its event says that they are to go.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parties: dict[int, threading.Event] = {}  # by rank

    def invite(self, count: int, first: int) -> tuple[list[int], threading.Event]:
        """So many free ranks, `first` or higher. Raises ValueError when there would be too many guests."""
        with self._lock:
            free = [rank for rank in range(first, first + MOST) if rank not in self._parties]
            if not 1 <= count <= len(free):
                raise ValueError(f"1 to {len(free)} workers can join now, {MOST} in all. Received: {count}")
            party = threading.Event()
            self._parties.update(dict.fromkeys(free[:count], party))
            return free[:count], party

    def dismiss(self, ranks: Sequence[int], party: threading.Event) -> list[int]:
        """Those of `ranks` that were still `party`'s. Its event is set."""
        with self._lock:
            gone = [rank for rank in ranks if self._parties.get(rank) is party]
            for rank in gone:
                del self._parties[rank]
        party.set()
        return gone

    def dismiss_all(self) -> list[int]:
        with self._lock:
            parties, self._parties = self._parties, {}
        for party in parties.values():
            party.set()
        return list(parties)

    def __contains__(self, rank: int) -> bool:
        return rank in self._parties
