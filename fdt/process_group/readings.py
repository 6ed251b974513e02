"""Numbers that rank 0's script reads between two collectives, sent to the other ranks as it reads them.

Rank 0 does not wait. Another rank that reads a number at the same line waits for rank 0's, until rank 0 begins the next
collective: then rank 0 does not read there, and the rank keeps its own number.
"""

import contextlib
from collections import defaultdict, deque
from typing import Any

from fdt.process_group.streams import ConnectionLost, MessageStream

FIELD = "readings"  # of a message's header: [place, number] pairs; None: rank 0 begins the next collective
_AT_ONCE = 100  # numbers in one message, which fits into a socket's buffer


class SentReadings:
    """Rank 0's side."""

    def __init__(self) -> None:
        self._unsent: defaultdict[int, list[tuple[str, Any]]] = defaultdict(list)  # by rank

    def add(self, rank: int, line: MessageStream | None, place: str, number: Any) -> None:
        """Send a rank a number, now or later: `line` is None before the rank has connected."""
        self._unsent[rank].append((place, number))
        if line is not None and line.writable():
            self._send_some(rank, line)

    def complete(self, rank: int, line: MessageStream) -> None:
        """Send a rank the rest, because rank 0 begins a collective."""
        while self._unsent[rank]:
            self._send_some(rank, line)
        _send(line, None)

    def _send_some(self, rank: int, line: MessageStream) -> None:
        _send(line, self._unsent[rank][:_AT_ONCE])
        del self._unsent[rank][:_AT_ONCE]


def _send(line: MessageStream, numbers: list[tuple[str, Any]] | None) -> None:
    with contextlib.suppress(ConnectionLost):  # messages that the rank sent before are still read
        line.send({FIELD: numbers})


class ReceivedReadings:
    """Another rank's side."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the numbers: a collective is complete."""
        self._numbers: defaultdict[str, deque[Any]] = defaultdict(deque)  # by place
        self.complete = False

    def take(self, header: dict[str, Any]) -> bool:
        """Store the numbers of a message. Return whether it was one of rank 0's readings."""
        if FIELD not in header:
            return False
        self.complete = header[FIELD] is None
        for place, number in header[FIELD] or ():
            self._numbers[place].append(number)
        return True

    def at(self, place: str) -> deque[Any]:
        """Return rank 0's numbers at a place that were not used yet."""
        return self._numbers[place]
