"""What a run of a replicated script divided, what it gathered, where, and at what cost."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from replica.placement import Shard


class Report:
    """Notes gathers by operation and place.

    Args:
        where: Returns the script's file and line.
    """

    def __init__(self, where: Callable[[], str]) -> None:
        self._where = where
        self.bytes_gathered: Counter[tuple[str, str]] = Counter()

    def gathered(self, op: str, tensors: Sequence[Any], where: str | None = None) -> None:
        """Note that an operation needed these Shards whole."""
        size = sum(_size(t) for t in tensors if isinstance(t._placement, Shard) and t._replicated is None)
        if size:
            self.bytes_gathered[op, where or self._where()] += size

    def lines(self, count: int = 5) -> list[str]:
        """Return one line for each of the costliest gathers."""
        return [
            f"{op} needed whole rows, {size / 1e6:.1f} MB gathered: {where}"
            for (op, where), size in self.bytes_gathered.most_common(count)
        ]


def _size(tensor: Any) -> int:
    elements = 1
    for n in tensor.shape:
        elements *= int(n or 1)
    return elements * int(tensor.dtype.size)
