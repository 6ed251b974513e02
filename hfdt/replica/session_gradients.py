"""The sum of a session run's gradients over ranks: rows of embeddings are concatenated, other arrays are added."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from replica.exchange import GroupedExchange
from replica.placement import PARTIAL, Placement, Shard

Array = Any


def added(
    name: str, arrays: Sequence[Array], sparse: Sequence[str], weight: float, exchange: GroupedExchange
) -> list[Array]:
    """Return the arrays, each combined over ranks. NumPy arrays.

    `weight`: of this rank. `sparse`: as `GradientNode.sparse`; rows of a rank of weight 0 are left out.
    """
    mine = [_weighed(array, kind, weight) for array, kind in zip(arrays, sparse, strict=True)]
    placements = _placements(name, mine, sparse, exchange)
    whole = exchange.replicated(name, mine, placements)
    return [total.astype(array.dtype, copy=False) for total, array in zip(whole, arrays, strict=True)]


def _weighed(array: Array, kind: str, weight: float) -> Array:
    array = array.astype(np.float32) if array.dtype.name in ("float16", "bfloat16") else array
    if kind and not weight:
        return array[:0]
    if kind == "indices":
        return array
    return array * np.asarray(weight, array.dtype) if weight else np.zeros_like(array)


def _placements(name: str, mine: Sequence[Array], sparse: Sequence[str], exchange: GroupedExchange) -> list[Placement]:
    """Return the placement of each array. The ranks' numbers of rows are exchanged first."""
    rows = [len(array) for array, kind in zip(mine, sparse, strict=True) if kind]
    one = Shard(0, (1,) * exchange.size)
    counts = exchange.replicated(f"rows of {name}", [np.array([rows])], [one])[0] if rows else ()
    found = iter(zip(*counts, strict=True))
    return [Shard(0, tuple(map(int, next(found)))) if kind else PARTIAL for kind in sparse]
