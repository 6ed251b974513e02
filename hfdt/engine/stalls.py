"""Which rank keeps the others waiting: a pure object, given what ranks say of themselves and a clock that never jumps.

Ranks are asked where they stand a few times in the time allowed. One that has been in the same exchange from one answer
to another waits for somebody: for those that are not in it, or do not answer.
"""

from dataclasses import dataclass

from fdt.rpc.session_pb2 import Standing

ASKS = 8  # in the time allowed
LEAST_S = 0.5  # between two
WARN_S = 60.0  # where the user has not said anything: late ranks are named, never given up


@dataclass
class _Rank:
    counts: tuple[int, int] = (0, 0)  # exchanges entered, left
    since: float = 0.0  # when these counts were first heard
    heard: float = 0.0  # the last answer
    place: str = ""
    log: str = ""

    @property
    def waits(self) -> bool:
        return self.counts[0] > self.counts[1]


@dataclass(frozen=True)
class StalledRank:
    """A rank that keeps others waiting. `given_up`: for longer than is allowed."""

    rank: int
    seconds: float
    place: str  # "" where it does not answer
    given_up: bool
    log: str = ""


class Stalls:
    """Of `size` ranks. `allowed_s`: then a late rank is given up; it is named after half of it. 0: only named."""

    def __init__(self, size: int, allowed_s: float, now: float) -> None:
        self._allowed = allowed_s
        self._warn = allowed_s / 2 if allowed_s else WARN_S
        self._pause = max(LEAST_S, 2 * self._warn / ASKS)  # between two questions
        self._ranks = {rank: _Rank(since=now, heard=now) for rank in range(size)}
        self._asked = now
        self._named: set[int] = set()

    def due(self, now: float) -> bool:
        """Are the ranks to be asked again?"""
        if now - self._asked < self._pause:
            return False
        self._asked = now
        return True

    def said(self, rank: int, standing: Standing, now: float) -> None:
        known, counts = self._ranks[rank], (standing.entered, standing.left)
        if counts != known.counts:
            known.counts, known.since = counts, now
        known.heard, known.place, known.log = now, standing.place, standing.log

    def late(self, now: float) -> list[StalledRank]:
        """Ranks to be named for the first time, or given up."""
        quiet = 2 * self._pause  # who has not answered for so long does not
        waiting = [known for known in self._ranks.values() if known.waits and now - known.heard < quiet]
        if not waiting:
            self._named.clear()
            return []
        # to the last answer, not to now: nobody is asked while the client computes, and a late rank may have come since
        seconds = max(known.heard for known in waiting) - max(known.since for known in waiting)
        if seconds < self._warn:
            self._named.clear()
            return []
        behind = {rank: known for rank, known in self._ranks.items() if known not in waiting}
        over = bool(self._allowed) and seconds >= self._allowed
        found = [
            StalledRank(rank, seconds, known.place if now - known.heard < quiet else "", over, known.log)
            for rank, known in behind.items()
            if over or rank not in self._named
        ]
        self._named.update(behind)
        return found
