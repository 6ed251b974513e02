"""Numbers that rank 0's script reads, for the other ranks, which ask for them.

Rank 0 does not wait, and sends numbers only to ranks that wait for an answer. A number belongs to a *moment*, the count
of steps that have begun since the last collective, and to a place in the script. Where rank 0 has come to a later
moment, or to a collective, without that number, the rank keeps its own.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

_AT_ONCE = 1000  # numbers in one answer


class Moments:
    """The count of steps since the last collective."""

    moment = 0

    def advance(self) -> None:
        """Come to the next step."""
        self.moment += 1


class Readings(Moments):
    """Rank 0's numbers since the last collective."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[int, str]] = {}  # by rank: the moment and place that it waits for
        self.clear()

    def clear(self) -> None:
        """Forget the numbers: every rank has come to a collective."""
        self.moment = 0
        self._log: list[tuple[int, str, Any]] = []
        self._sent: defaultdict[int, int] = defaultdict(int)  # by rank

    def add(self, place: str, number: Any) -> None:
        """Record a number that rank 0 reads."""
        self._log.append((self.moment, place, number))

    def ask(self, rank: int, header: dict[str, Any]) -> None:
        """Record that a rank waits for a number."""
        self._asked[rank] = header["moment"], header["place"]

    def answers(self, *, complete: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the answers that can be given now. `complete`: rank 0 is at a collective."""
        for rank, (moment, place) in list(self._asked.items()):
            first, passed = self._sent[rank], complete or self.moment > moment
            if passed or any(entry[:2] == (moment, place) for entry in self._log[first:]):
                numbers = self._log[first : first + _AT_ONCE]
                self._sent[rank] += len(numbers)
                del self._asked[rank]
                yield rank, {"numbers": numbers, "passed": passed and self._sent[rank] == len(self._log)}


class AskedReadings(Moments):
    """The numbers that another rank got from rank 0 since the last collective."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the numbers: a collective is complete."""
        self.moment = 0
        self._numbers: defaultdict[tuple[int, str], deque[Any]] = defaultdict(deque)

    def question(self, place: str) -> dict[str, Any]:
        """Return the header that asks for a number of this moment."""
        return {"what": "read", "moment": self.moment, "place": place}

    def take(self, answer: dict[str, Any]) -> None:
        """Store an answer's numbers."""
        for moment, place, number in answer["numbers"]:
            self._numbers[moment, place].append(number)

    def at(self, place: str) -> deque[Any]:
        """Return rank 0's numbers of this moment and place that were not used yet."""
        return self._numbers[self.moment, place]
