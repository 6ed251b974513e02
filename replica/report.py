"""The report of a replicated script: which input is divided, and for which operations how many bytes are gathered."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from replica.placement import Shard

_WORTH_A_LINE = 1_000_000  # bytes


class DivisionReport:
    """The gathers by operation and place.

    Args:
        where: Returns the script's file and line.
    """

    def __init__(self, where: Callable[[], str]) -> None:
        self._where = where
        self.bytes_gathered: Counter[tuple[str, str]] = Counter()
        self._notes: dict[str, None] = {}

    def note(self, line: str) -> None:
        """Record a line for the end of the run, once."""
        self._notes[line] = None

    def gathered(self, op: str, tensors: Sequence[Any]) -> None:
        """Record that an eager operation needed these Shards replicated."""
        sent = [t for t in tensors if isinstance(t._placement, Shard) and t._replicated is None]
        size = sum(_size(t) for t in sent if t._source is None)
        if size:
            self.add(op, self._where(), size)

    def add(self, op: str, where: str, size: int) -> None:
        """Record `size` bytes that were gathered for an operation."""
        self.bytes_gathered[op, where] += size

    def lines(self, count: int = 5) -> list[str]:
        """Return the lines that were noted, and one for each of the largest gathers of a megabyte or more."""
        return list(self._notes)[:count] + [
            f"{where}: {op} is not divided: {size / 1e6:,.0f} MB of rows were gathered for it"
            for (op, where), size in self.bytes_gathered.most_common(count)
            if size >= _WORTH_A_LINE
        ]


def _size(tensor: Any) -> int:
    elements = 1
    for n in tensor.shape:
        elements *= int(n or 1)
    return elements * int(tensor.dtype.size)
