"""Collectives on NumPy arrays: any number of Partials and Shards become replicated in one all-reduce per dtype."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from replica.group import ReplicaGroup, neutral
from replica.placement import Placement, Shard, global_shape

Array = npt.NDArray[Any]
# Dtypes that NumPy does not add, or adds too coarsely, and the one they are sent as.
_WIDE = {"float16": np.float32, "bfloat16": np.float32, "bool": np.uint8}
_HALF_FROM = 1024  # elements; fp16 saves nothing on fewer


class Exchange:
    """Replicates local arrays.

    Args:
        group: The ranks.
        fp16: Send large float32 Partials as float16.
    """

    def __init__(self, group: ReplicaGroup, *, fp16: bool = False) -> None:
        self._group, self._fp16 = group, fp16
        self.rank, self.size = group.rank, group.size
        self.failure: Exception | None = None  # of a collective within a graph, where TensorFlow rewords it

    def replicated(self, name: str, arrays: Sequence[Array], placements: Sequence[Placement]) -> list[Array]:
        """Return the global arrays.

        Args:
            name: Of the collective, the same on every rank.
            arrays: This rank's local arrays.
            placements: Partial or Shard, of each.
        """
        out: list[Any] = [None] * len(arrays)
        for dtype in sorted({self._wire(a, p) for a, p in zip(arrays, placements, strict=True)}):
            chosen = [i for i, a in enumerate(arrays) if self._wire(a, placements[i]) == dtype]
            parts = [self._addend(arrays[i], placements[i], dtype) for i in chosen]
            vector = parts[0] if len(parts) == 1 else np.concatenate(parts)
            total = self._reduced(vector, name)
            ends = np.cumsum([len(part) for part in parts])
            for i, part in zip(chosen, np.split(total, ends[:-1]), strict=True):
                shape = global_shape(arrays[i].shape, placements[i])
                out[i] = part.reshape(shape).astype(arrays[i].dtype, copy=False)
        return out

    def _reduced(self, vector: Array, name: str) -> Array:
        try:
            return self._group.all_reduce(vector, name)
        except Exception as error:
            self.failure = error
            raise

    def local(self, array: Array, placement: Shard) -> Array:
        """Return this rank's part of a global array."""
        low, high = placement.bounds(self.rank)
        return array[(slice(None),) * placement.axis + (slice(low, high),)]

    def _wire(self, array: Array, placement: Placement) -> str:
        if self._fp16 and array.dtype == np.float32 and array.size >= _HALF_FROM and not isinstance(placement, Shard):
            return "float16"
        return str(np.dtype(_WIDE.get(array.dtype.name, array.dtype)))

    def _addend(self, array: Array, placement: Placement, dtype: str) -> Array:
        if not isinstance(placement, Shard):
            return np.ravel(array).astype(dtype, copy=False)
        shape = *array.shape[: placement.axis], placement.total, *array.shape[placement.axis + 1 :]
        whole: Array = np.full(shape, neutral(dtype), dtype)
        self.local(whole, placement)[...] = array
        return np.ravel(whole)
