"""Where the ranks of one host lay large vectors for each to add: mapped files, two for each rank, used in turn.

Who lays a vector for the next sum but one has heard that all others came to the next; so they have read this one.
"""

from collections.abc import Iterable
from pathlib import Path

from fdt.service.lines import Slot, Vector


class Adding:
    def __init__(self, directory: Path, size: int) -> None:
        self._slots = [[Slot(directory / f"adding-{rank}-{turn}") for rank in range(size)] for turn in range(2)]
        self._turn = 0

    def begin(self) -> None:
        """The next sum. All ranks count alike."""
        self._turn = 1 - self._turn

    def lay(self, rank: int, vector: Vector) -> None:
        self._slots[self._turn][rank].write(vector)

    def laid(self, rank: int, like: Vector) -> Vector:
        """What the rank has laid: a view, good until the next sum but one."""
        return self._slots[self._turn][rank].read(like)

    def total(self, ranks: Iterable[int], like: Vector) -> Vector:
        """What the ranks have laid, added in their order: the same to the bit wherever it is done."""
        first, second, *others = (self.laid(rank, like) for rank in ranks)
        total: Vector = first + second
        for vector in others:
            total += vector
        return total
