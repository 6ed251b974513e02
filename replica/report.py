"""What a run of a replicated script divided, what it gathered, where, and at what cost."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from replica.placement import Shard

_WORTH_A_LINE = 1_000_000  # bytes


class DivisionReport:
    """Notes gathers by operation and place.

    Args:
        where: Returns the script's file and line.
    """

    def __init__(self, where: Callable[[], str]) -> None:
        self._where = where
        self.bytes_gathered: Counter[tuple[str, str]] = Counter()

    def gathered(self, op: str, tensors: Sequence[Any]) -> None:
        """Note that an eager operation needed these Shards whole."""
        size = sum(_size(t) for t in tensors if isinstance(t._placement, Shard) and t._replicated is None)
        if size:
            self.add(op, self._where(), size)

    def add(self, op: str, where: str, size: int) -> None:
        """Note `size` bytes that were gathered for an operation."""
        self.bytes_gathered[op, where] += size

    def lines(self, count: int = 5) -> list[str]:
        """Return one line for each of the costliest gathers; those of less than a megabyte cost nothing to speak of."""
        return [
            f"{where}: {op} is not divided: {size / 1e6:,.0f} MB of rows were gathered for it"
            for (op, where), size in self.bytes_gathered.most_common(count)
            if size >= _WORTH_A_LINE
        ]


def _size(tensor: Any) -> int:
    elements = 1
    for n in tensor.shape:
        elements *= int(n or 1)
    return elements * int(tensor.dtype.size)
