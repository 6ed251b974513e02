"""Where the ranks of one host lay vectors that are to be added: mapped files.

For most a rank has two, used in turn, and each rank adds for itself. Who lays a vector for the next sum but one has
heard that all others came to the next; so they have read this one. For a large one, to add which many times over takes
longer than one more word, it has one, and rank 0 adds.
"""

from collections.abc import Iterable
from pathlib import Path

from fdt.service.lines import Slot, Vector

EACH_BYTES = 1 << 20  # what is larger rank 0 adds


class Adding:
    """`number`: of sums that are complete; all ranks count alike. `slots`: the one file of each rank."""

    def __init__(self, directory: Path, size: int) -> None:
        self._turns = [[Slot(directory / f"adding-{rank}-{turn}") for rank in range(size)] for turn in range(2)]
        self.slots = [Slot(directory / f"slot-{rank}") for rank in range(size)]
        self.number = 0

    def lay(self, rank: int, vector: Vector) -> None:
        self._slot(rank, vector).write(vector)

    def laid(self, rank: int, like: Vector) -> Vector:
        """What the rank has laid: a view, good until the next sum begins."""
        return self._slot(rank, like).read(like)

    def total(self, ranks: Iterable[int], like: Vector) -> Vector:
        """What the ranks have laid, added in their order: the same to the bit wherever it is done."""
        first, second, *others = (self.laid(rank, like) for rank in ranks)
        total: Vector = first + second
        for vector in others:
            total += vector
        return total

    def _slot(self, rank: int, vector: Vector) -> Slot:
        return (self.slots if vector.nbytes > EACH_BYTES else self._turns[self.number % 2])[rank]
