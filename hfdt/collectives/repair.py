"""Loss repair of a packet that is sent to many receivers in numbered pieces: decisions only, without socket or clock.

A receiver reports after every REPORT_EVERY pieces, when it finds or fills a gap, when it has all pieces, and when a
piece arrives again. The sender stays at most a window of pieces ahead of the slowest receiver, sends missing pieces
again, and probes receivers that have been silent. The window grows while nothing is lost and is halved on a loss, as in
TCP (RFC 5681), so the slowest receiver's link sets the pace.
"""

from collections.abc import Iterable
from dataclasses import dataclass

PIECE = 1400  # bytes; with all headers it fits into an Ethernet frame's 1500
REPORT_EVERY = 16  # pieces between two reports
MOST_RANGES = 64  # ranges of missing pieces in a report
FIRST_WINDOW, LEAST_WINDOW, LARGEST_WINDOW = 32, 4, 512  # pieces
AGAIN_S = 0.01  # a piece is sent again, and the window halved, no more than once in this time
PROBE_S, LONGEST_PROBE_S = 0.03, 1.0  # doubled from one probe to the next


def pieces_of(nbytes: int) -> int:
    """Return the number of pieces, at least one: an empty packet is announced too."""
    return max(1, -(-nbytes // PIECE))


@dataclass(frozen=True)
class ReceiverReport:
    """A receiver's state: it has all pieces below `first`, but not the ranges `missing`, [low, high), of later ones."""

    first: int
    missing: tuple[tuple[int, int], ...] = ()


class Receiving:
    """A packet that is being received."""

    def __init__(self, nbytes: int) -> None:
        self.data, self.count = bytearray(nbytes), pieces_of(nbytes)
        self._received = bytearray(self.count)
        self._first = self._seen = self._unsaid = 0

    @property
    def done(self) -> bool:
        """Whether all pieces have arrived."""
        return self._first == self.count

    def take(self, number: int, payload: bytes | memoryview) -> bool:
        """Store piece `number`; return whether to send a report. Raises ValueError for a piece that does not fit."""
        low = number * PIECE
        if not 0 <= number < self.count or len(payload) != min(PIECE, len(self.data) - low):
            raise ValueError(f"piece {number} of {self.count}, {len(payload)} bytes")
        if self._received[number]:
            return True  # sent again, or a probe: the last report may be lost
        out_of_line = number != self._seen  # a gap was found or filled
        self.data[low : low + len(payload)] = payload
        self._received[number], self._seen = 1, max(self._seen, number + 1)
        after = self._received.find(0, self._first)
        self._first = self.count if after < 0 else after
        self._unsaid += 1
        return out_of_line or self.done or self._unsaid >= REPORT_EVERY

    def report(self) -> ReceiverReport:
        """Return the state of this packet for the sender."""
        self._unsaid = 0
        missing: list[tuple[int, int]] = []
        at = self._first
        while at < self._seen and len(missing) < MOST_RANGES:
            end = self._received.find(1, at)
            missing.append((at, end))
            after = self._received.find(0, end)
            at = self.count if after < 0 else after
        return ReceiverReport(self._first, tuple(missing))


class Sending:
    """A packet that is being sent to `receivers`. Times are seconds of one clock."""

    def __init__(self, nbytes: int, receivers: Iterable[int], now: float) -> None:
        self.count, self.window = pieces_of(nbytes), FIRST_WINDOW
        self._first = dict.fromkeys(receivers, 0)
        self._next, self._wait_s = 0, PROBE_S
        self._again: dict[int, None] = {}
        self._sent_again: dict[int, float] = {}
        self._halved = -AGAIN_S
        self.progress_s = self._asked_s = now

    def begin(self, now: float) -> None:
        """Start the clock of a packet that was queued until `now`."""
        self.progress_s = self._asked_s = now

    @property
    def done(self) -> bool:
        """Whether every receiver has all pieces."""
        return self._least == self.count

    @property
    def behind(self) -> list[int]:
        """The unfinished receivers that have the fewest pieces."""
        return [k for k, first in self._first.items() if first == self._least and first < self.count]

    @property
    def _least(self) -> int:
        return min(self._first.values(), default=self.count)

    def due(self, now: float) -> tuple[list[int], list[int]]:
        """Return the pieces to send again and the new pieces to send."""
        again, self._again = list(self._again), {}
        self._sent_again.update(dict.fromkeys(again, now))
        end = max(self._next, min(self.count, self._least + self.window))
        new, self._next = list(range(self._next, end)), end
        return again, new

    def receive_report(self, receiver: int, report: ReceiverReport, now: float) -> None:
        """Handle a receiver's report: schedule missing pieces to be sent again, and adapt the window."""
        before = self._least
        if receiver not in self._first:
            return
        self._first[receiver] = max(self._first[receiver], min(report.first, self.count))
        lost = [i for low, high in report.missing for i in range(low, min(high, self._next))]
        self._again.update(dict.fromkeys(i for i in lost if now - self._sent_again.get(i, -AGAIN_S) >= AGAIN_S))
        if lost and now - self._halved >= AGAIN_S:
            self.window, self._halved = max(LEAST_WINDOW, self.window // 2), now
        if self._least > before:
            self.progress_s = self._asked_s = now
            self._wait_s = PROBE_S
            if not lost:
                self.window = min(LARGEST_WINDOW, self.window + 1)

    @property
    def probe_s(self) -> float:
        """The time of the next probe unless a report arrives before."""
        return self._asked_s + self._wait_s

    def probe(self, now: float) -> int:
        """Return the piece to send to the slowest receivers as a probe: the last one sent, so they report every gap."""
        self._asked_s, self._wait_s = now, min(2 * self._wait_s, LONGEST_PROBE_S)
        return self._next - 1
