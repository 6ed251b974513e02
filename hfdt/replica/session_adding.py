"""Gradients of a session's run, NumPy arrays, added over ranks: an embedding's rows end to end, all else number by
number."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any
Add = Callable[[str, Array], Array]  # (name, vector) -> the ranks' added


def added(
    arrays: Sequence[Array], sparse: Sequence[str], weight: float, add: Add, rank: int, size: int, *, fp16: bool = False
) -> list[Array]:
    """`weight`: of this rank. `sparse`: as `Taken.sparse`; rows of a rank of weight 0 are left out."""
    placed = _places([len(a) if weight else 0 for a, kind in zip(arrays, sparse, strict=True) if kind], add, rank, size)
    spread = iter(placed)
    addends = [
        _addend(array, kind, weight, next(spread) if kind else None) for array, kind in zip(arrays, sparse, strict=True)
    ]
    result: list[Array] = [None] * len(arrays)
    for dtype in sorted({a.dtype.str for a in addends}):
        group = [i for i, a in enumerate(addends) if a.dtype.str == dtype]
        vector = np.concatenate([addends[i].ravel() for i in group])
        narrow = fp16 and vector.dtype.kind == "f"
        total = add(f"of {dtype}", vector.astype(np.float16) if narrow else vector).astype(vector.dtype)
        for i, part in zip(group, np.split(total, np.cumsum([addends[i].size for i in group])[:-1]), strict=True):
            result[i] = part.reshape(addends[i].shape).astype(arrays[i].dtype)
    return result


def _places(rows: Sequence[int], add: Add, rank: int, size: int) -> list[tuple[int, int, int]]:
    """Of each sparse array: (rows before mine, mine, behind them)."""
    if not rows:
        return []
    counts = np.zeros((len(rows), size), np.int64)
    counts[:, rank] = rows
    counts = add("rows", counts.ravel()).reshape(counts.shape)
    return [(int(c[:rank].sum()), int(c[rank]), int(c[rank + 1 :].sum())) for c in counts]


def _addend(array: Array, kind: str, weight: float, place: tuple[int, int, int] | None) -> Array:
    array = array.astype(np.float32) if array.dtype.name in ("float16", "bfloat16") else array
    if place is not None:
        before, mine, behind = place
        array = np.pad(array[:mine], [(before, behind), *[(0, 0)] * (array.ndim - 1)])
    if kind == "indices":
        return array
    return array * np.asarray(weight, array.dtype) if weight else np.zeros_like(array)
