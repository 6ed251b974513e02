"""The results of a session run over ranks: fetched values of the whole batch, and the sum of gradients.

Runs of the first batches, whole and in halves, determine which number is a mean over samples and which a sum; what is
neither (a root, a maximum) is computed of the whole batch. A summary (`tf.compat.v1.summary`) is split into its
scalars; its histograms are rank 0's, of rank 0's own rows. Of gradients, rows of embeddings are concatenated and other
arrays are added.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from fdt.compat.tensorflow import summary_pb2
from fdt.typing import Array, Vector
from hfdt.worker.step_context import Reading
from replica.exchange import GroupedExchange
from replica.placement import PARTIAL, Placement, Shard, divided

Cell: TypeAlias = Array
INEXACT = 1e-3  # relative; rounding is at 1e-6
ROUNDING = 1e-5  # of fetched numbers: what is off by more is computed of the whole batch, which costs time only
ROUNDING_OF_ROWS = 1e-4
SHOWN = 0.02  # relative; a root or an exponential of means whose halves differ by less may pass for a mean


class OutputKind(Enum):
    """The combination of the ranks' numbers. FIRST: rank 0's. WHOLE: rank 0's of a run on the whole batch."""

    MEAN = "mean"
    SUM = "sum"
    ROWS = "rows"
    FIRST = "first"
    WHOLE = "whole"


def read(whole: Vector, first: Vector, second: Vector) -> Reading:
    """Return the nearer of sum and mean of two halves of equal size."""
    of_mean, of_sum = (float(np.sum(np.square(whole - k * (first + second)))) for k in (0.5, 1.0))
    return Reading.STEP_SUM if of_sum < of_mean else Reading.MEAN


def cells(tensor: Any, value: Any) -> list[Cell]:
    """Return the arrays in a fetched value; none for operations, and for strings that are not summaries."""
    if value is None:
        return []
    if _is_summary(tensor):
        scalars = filter(_is_scalar, summary_pb2.Summary.FromString(value).value)
        return [np.float32(each.simple_value) for each in scalars]
    array = np.asarray(value)
    return [array] if array.dtype.kind in "fiub" or _is_narrow(array) else []


def rebuilt(tensor: Any, value: Any, made: list[Cell]) -> Any:
    """Return the value with `made` in place of its cells."""
    if not made:
        return value
    if _is_summary(tensor):
        summary, rest = summary_pb2.Summary.FromString(value), iter(made)
        for each in summary.value:
            if _is_scalar(each):
                each.simple_value = float(next(rest))
        return summary.SerializeToString()
    array = np.asarray(made[0], np.asarray(value).dtype)
    return array if array.shape else array.dtype.type(array)


def how(whole: Cell, first: Cell, second: Cell, even: Cell, rows: int) -> OutputKind | None:
    """Return the likeliest kind of a cell that draws random numbers; None where all values are 0, which shows nothing.

    `even` has as many rows as the two halves together, `whole` has `rows` rows.
    """
    if np.ndim(whole) and len(whole) == rows and len(first) == len(second) == rows // 2:
        return OutputKind.ROWS
    if not np.shape(even) == np.shape(first) == np.shape(second):
        return OutputKind.FIRST
    equal = np.array_equal(even, first) and np.array_equal(even, second)
    if even.dtype.kind == "b":
        return OutputKind.FIRST
    if not np.any(even) and equal:
        return None
    if even.dtype.kind in "iu":
        return OutputKind.SUM if np.array_equal(even, first + second) else OutputKind.FIRST
    flat = [np.ravel(np.asarray(cell, np.float64)) for cell in (even, first, second)]
    if not all(np.all(np.isfinite(each)) for each in flat):
        return None
    return OutputKind.SUM if read(*flat) is Reading.STEP_SUM else OutputKind.MEAN


def exactly(
    whole: Cell, first: Cell, second: Cell, even: Cell, rows: int, inexact: float = ROUNDING
) -> OutputKind | None:
    """Return the kind of a cell, WHOLE where it is no mean, sum or rows; None where these values do not show it.

    The arguments are those of `how`. Relative differences up to `inexact` are none.
    """
    kind = even.dtype.kind
    if np.ndim(whole) and len(whole) == rows and len(first) == len(second) == rows // 2:
        same = np.shape(whole)[1:] == np.shape(first)[1:] and _near(even, np.concatenate([first, second]))
        return OutputKind.ROWS if same else OutputKind.WHOLE
    if kind == "b" or not np.shape(even) == np.shape(first) == np.shape(second):
        return OutputKind.WHOLE
    if kind in "iu":
        found = OutputKind.SUM if np.any((first != 0) & (second != 0)) else None
        return found if np.array_equal(even, first + second) else OutputKind.WHOLE
    flat = [np.ravel(np.asarray(cell, np.float64)) for cell in (even, first, second)]
    size = max((float(np.max(np.abs(each), initial=0.0)) for each in flat), default=0.0)
    if not size or not np.isfinite(size):
        return None
    total, one, other = (each / size for each in flat)
    is_sum = read(total, one, other) is Reading.STEP_SUM
    off = np.max(np.abs(total - (one + other) * (1.0 if is_sum else 0.5)))
    if off > inexact:
        return OutputKind.WHOLE
    shown = np.minimum(np.abs(one), np.abs(other)) if is_sum else np.abs(one - other)
    return (OutputKind.SUM if is_sum else OutputKind.MEAN) if np.max(shown) > SHOWN else None


def _near(one: Cell, other: Cell) -> bool:
    if one.dtype.kind in "biu":
        return np.array_equal(one, other)
    a, b = (np.asarray(each, np.float64) for each in (one, other))
    size = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))
    return np.allclose(a, b, rtol=0, atol=max(ROUNDING_OF_ROWS, rounding(one)) * size, equal_nan=True)


def rounding(cell: Cell) -> float:
    """Return the relative rounding of a few operations in the cell's own precision."""
    return 0.03 if _is_narrow(cell) else 4 * float(np.finfo(cell.dtype).eps) if cell.dtype.kind == "f" else 0.0


def reading(whole: Vector, first: Vector, second: Vector) -> tuple[Reading | None, float]:
    """Return the reading of a gradient and the relative error of the halves under it. None: the gradient was 0."""
    size = float(np.linalg.norm(whole))
    if not size or not np.isfinite(size):
        return None, 0.0
    found = read(whole, first, second)
    return found, float(np.linalg.norm(whole - (first + second) * (1.0 if found is Reading.STEP_SUM else 0.5))) / size


class Combining:
    """Combines fetched values over ranks. `share`: (rows of this rank, rows of the batch)."""

    def __init__(self, exchange: GroupedExchange, share: tuple[int, int]) -> None:
        self._exchange, (self._mine, self._total) = exchange, share

    def whole(self, made: Sequence[Cell], hows: Sequence[OutputKind]) -> list[Cell]:
        """Return the cells of the whole batch."""
        arrays = [self._part(np.asarray(cell), kind) for cell, kind in zip(made, hows, strict=True)]
        rows = Shard(0, divided(self._total, self._exchange.size))
        placements = [rows if kind is OutputKind.ROWS else PARTIAL for kind in hows]
        whole = self._exchange.replicated("fetched", arrays, placements)
        return [_typed(array, np.asarray(cell).dtype) for array, cell in zip(whole, made, strict=True)]

    def _part(self, cell: Cell, kind: OutputKind) -> Cell:
        if kind is OutputKind.ROWS:
            return cell[: self._mine]
        cell, first = cell.astype(np.float64), float(self._exchange.rank == 0)
        weight = {OutputKind.MEAN: self._mine / self._total, OutputKind.SUM: float(self._mine > 0)}.get(kind, first)
        return cell * weight if weight else np.zeros_like(cell)


def _typed(array: Cell, dtype: Any) -> Cell:
    return (np.rint(array) if dtype.kind in "iu" and array.dtype.kind == "f" else array).astype(dtype, copy=False)


def _is_summary(tensor: Any) -> bool:
    return "Summary" in getattr(getattr(tensor, "op", None), "type", "")


def _is_scalar(value: Any) -> bool:
    return bool(value.WhichOneof("value") == "simple_value")


def _is_narrow(array: Cell) -> bool:
    return str(array.dtype) == "bfloat16"


def added(
    name: str, arrays: Sequence[Array], sparse: Sequence[str], weight: float, exchange: GroupedExchange
) -> list[Array]:
    """Return the arrays of a gradient over all ranks: dense ones weighted and summed. A collective.

    Args:
        name: The name of the exchange.
        arrays: NumPy arrays of any shape.
        sparse: The kind of each array, as in `GradientNode.sparse`; sparse ones are concatenated, with weighted values.
        weight: The weight of this rank; 0 leaves the rows of its sparse arrays out.
        exchange: The collectives.
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
