"""Ranks ahead of or behind rank 0: the numbers that they request from it, and the error if collectives differ.

Rank 0 does not wait, and sends numbers that its script reads only to ranks that wait for an answer. A number belongs to
a *moment*, the count of steps that have begun since the last collective, and is the n-th at its place of the script.
Where rank 0 has come to a later moment, or to a collective, without that number, the rank keeps its own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_AT_ONCE = 1000  # numbers in one answer
_KEPT = 20_000  # numbers that rank 0 keeps; a rank that is farther behind keeps its own
_FAILED = "exit code 1"  # the script raised an exception; a script may exit with any other code
_OWN_NUMBERS = "; a worker's own number, such as np.mean of tensors, may have decided a branch: read each by float()"


class Moments:
    """The count of steps since the last collective, and of the numbers read since, by place."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew: every rank has come to a collective."""
        self.moment, self._read = 0, Counter[str]()

    def advance(self) -> None:
        """Come to the next step."""
        self.moment += 1
        self._read.clear()

    def count(self, place: str) -> int:
        """Return how many numbers of this moment and place were read, and count another."""
        self._read[place] += 1
        return self._read[place] - 1


class Readings(Moments):
    """The numbers that rank 0's script reads, and the other ranks that wait for one of them."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[int, str, int]] = {}  # by rank: the moment, place and count that it waits for
        super().__init__()

    def clear(self) -> None:
        """Implement Moments."""
        super().clear()
        self._log: list[tuple[int, str, int, Any]] = []
        self._sent: defaultdict[int, int] = defaultdict(int)  # by rank

    def add(self, place: str, number: Any) -> None:
        """Record a number that rank 0 reads."""
        self._log.append((self.moment, place, self.count(place), number))
        if len(self._log) >= 2 * _KEPT:
            del self._log[:_KEPT]
            for rank, sent in self._sent.items():
                self._sent[rank] = max(0, sent - _KEPT)

    def ask(self, rank: int, header: dict[str, Any]) -> None:
        """Record that a rank waits for a number."""
        self._asked[rank] = header["moment"], header["place"], header["n"]

    def answers(self, *, complete: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the answers that can be given now. `complete`: rank 0 is at a collective."""
        for rank, (moment, place, n) in list(self._asked.items()):
            if complete or self.moment > moment or self._read[place] > n:
                first, end = self._sent[rank], self._sent[rank] + _AT_ONCE
                self._sent[rank] = min(end, len(self._log))
                del self._asked[rank]
                passed = end >= len(self._log) or self._log[end][0] > moment
                yield rank, {"numbers": self._log[first:end], "passed": passed}


class AskedReadings(Moments):
    """The numbers that another rank got from rank 0."""

    def clear(self) -> None:
        """Implement Moments."""
        super().clear()
        self._numbers: dict[int, dict[tuple[str, int], list[Any]]] = {}  # by moment, place and count; one number each

    def advance(self) -> None:
        """Come to the next step; forget the numbers of this one."""
        self._numbers.pop(self.moment, None)
        super().advance()

    def question(self, place: str, n: int) -> dict[str, Any]:
        """Return the header that asks for a number of this moment."""
        return {"what": "read", "moment": self.moment, "place": place, "n": n}

    def take(self, answer: dict[str, Any]) -> None:
        """Store an answer's numbers, of this moment and later ones."""
        for moment, place, n, number in answer["numbers"]:
            if moment >= self.moment:
                self._numbers.setdefault(moment, {})[place, n] = [number]

    def pop(self, place: str, n: int) -> list[Any]:
        """Return rank 0's n-th number of this moment and place, once; [] where it is not known."""
        return self._numbers.get(self.moment, {}).pop((place, n), [])


def exited_by_itself(how: str) -> bool:
    """Return whether a script that ended as `how` says has ended on purpose."""
    return how.startswith("exit code ") and how != _FAILED


def describe_mismatch(
    rank: int, header: Mapping[str, Any], mine: str, wanted: Sequence[Any], *, asynchronous: bool
) -> str:
    """Return the error: where `rank` is by its `header`, and `mine`, where rank 0 is, at collective `wanted`."""
    ended = header["value"] if header["what"] == "end" else {}
    how = ": ".join(filter(None, (ended.get("how"), ended.get("died_of"))))
    theirs = f"has ended the script ({how})" if ended else f"calls {named(header['what'], wanted)} at {header['where']}"
    hint = _OWN_NUMBERS if asynchronous and not ended else ""
    return f"all ranks must call the same collectives in the same order, but rank {rank} {theirs}, and {mine}{hint}"


def named(wanted: Any, beside: Any) -> str:
    """Return a description of the collective `wanted`, with its number where it otherwise equals `beside`."""
    if wanted == "push":
        return "a push"
    name, count, _, number = wanted
    shown = f"{name} ({count:,} numbers)" if count else str(name)
    return f"{shown}, sum {number + 1:,}" if list(wanted[:2]) == list(beside[:2]) else shown
