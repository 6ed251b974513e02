"""Placements on the one mesh axis: how a rank's tensor relates to the global tensor, as in DTensor and GSPMD."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Replicate:
    """Every rank has the global tensor."""


@dataclass(frozen=True)
class Partial:
    """The global tensor is the sum of the ranks' tensors, which all have its shape."""


@dataclass(frozen=True)
class Shard:
    """Rank r has `sizes[r]` consecutive entries of dimension `axis` of the global tensor, in the order of the ranks."""

    axis: int
    sizes: tuple[int, ...]

    @property
    def total(self) -> int:
        """The global size of the divided dimension."""
        return sum(self.sizes)

    def bounds(self, rank: int) -> tuple[int, int]:
        """Return the index of `rank`'s first entry and the one after its last."""
        low = sum(self.sizes[:rank])
        return low, low + self.sizes[rank]

    def at(self, axis: int) -> "Shard":
        """Return the same division of dimension `axis`."""
        return Shard(axis, self.sizes)

    def without(self, axes: Collection[int]) -> "Shard":
        """Return the same division once `axes`, of which the divided dimension is none, are removed."""
        return self.at(self.axis - sum(axis < self.axis for axis in axes))

    def beside(self, axis: int) -> "Shard":
        """Return the same division once a new dimension is inserted as `axis`."""
        return self.at(self.axis + (axis <= self.axis))


Placement = Replicate | Partial | Shard

REPLICATE = Replicate()
PARTIAL = Partial()


def divided(rows: int, size: int) -> tuple[int, ...]:
    """Return the number of `rows` entries for each of `size` ranks: the contiguous division of fdt/data/source.py."""
    return tuple(rows * (rank + 1) // size - rows * rank // size for rank in range(size))


def local_shape(shape: Sequence[int | None], placement: Placement, rank: int) -> tuple[int | None, ...]:
    """Return the shape of `rank`'s part of a global tensor of `shape`."""
    if not isinstance(placement, Shard):
        return tuple(shape)
    return (*shape[: placement.axis], placement.sizes[rank], *shape[placement.axis + 1 :])


def global_shape(shape: Sequence[int | None], placement: Placement) -> tuple[int | None, ...]:
    """Return the shape of the global tensor of which a rank's part has `shape`."""
    if not isinstance(placement, Shard):
        return tuple(shape)
    return (*shape[: placement.axis], placement.total, *shape[placement.axis + 1 :])
