"""Detection of ranks that keep others waiting: a pure object of the ranks' heartbeats and a monotonic clock.

Ranks are asked for their state several times within the allowed time. A rank that is in the same exchange in two
answers waits: for ranks that are not in the exchange, or that do not answer.
"""

from dataclasses import dataclass

from fdt.rpc.session_pb2 import Standing

ASKS = 8  # questions within the allowed time
LEAST_S = 0.5  # the least time between two questions
WARN_S = 60.0  # without --stall-timeout: late ranks are named after this time and never given up


@dataclass
class _Rank:
    counts: tuple[int, int] = (0, 0)  # exchanges entered, left
    since: float = 0.0  # when these counts were first reported
    answered: float = 0.0  # time of the last answer
    place: str = ""
    log: str = ""

    @property
    def waits(self) -> bool:
        return self.counts[0] > self.counts[1]

    def note(self, standing: Standing, now: float) -> None:
        counts = standing.entered, standing.left
        if counts != self.counts:
            self.counts, self.since = counts, now
        self.answered, self.place, self.log = now, standing.place, standing.log


@dataclass(frozen=True)
class StalledRank:
    """A rank that keeps others waiting. `given_up`: longer than allowed."""

    rank: int
    seconds: float
    place: str  # "" where it does not answer
    given_up: bool
    log: str = ""


class Stalls:
    """The detector for `size` ranks.

    `allowed_s`: seconds after which a late rank is given up; it is named after half of them. 0: ranks are only named.
    """

    def __init__(self, size: int, allowed_s: float, now: float) -> None:
        self._allowed = allowed_s
        self._warn = allowed_s / 2 if allowed_s else WARN_S
        self._pause = max(LEAST_S, 2 * self._warn / ASKS)  # between two questions
        self._ranks = {rank: _Rank(since=now, answered=now) for rank in range(size)}
        self._asked = now
        self._named: set[int] = set()

    def due(self, now: float) -> bool:
        """Return whether to ask the ranks again."""
        if now - self._asked < self._pause:
            return False
        self._asked = now
        return True

    def note(self, rank: int, standing: Standing, now: float) -> None:
        """Record a rank's heartbeat."""
        self._ranks[rank].note(standing, now)

    def late(self, now: float) -> list[StalledRank]:
        """Return the ranks to name for the first time, or to give up."""
        quiet = 2 * self._pause  # a rank that is silent for longer does not answer
        waiting = [known for known in self._ranks.values() if known.waits and now - known.answered < quiet]
        if not waiting:
            self._named.clear()
            return []
        # Until the last answer, not now: ranks are not asked while the client computes, and may not be late any more.
        seconds = max(known.answered for known in waiting) - max(known.since for known in waiting)
        if seconds < self._warn:
            self._named.clear()
            return []
        behind = {rank: known for rank, known in self._ranks.items() if known not in waiting}
        over = bool(self._allowed) and seconds >= self._allowed
        found = [
            StalledRank(rank, seconds, known.place if now - known.answered < quiet else "", over, known.log)
            for rank, known in behind.items()
            if over or rank not in self._named
        ]
        self._named.update(behind)
        return found
