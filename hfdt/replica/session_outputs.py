"""The results of a session run over ranks: fetched values of the whole batch, and the sum of gradients.

Runs of batches, whole and in the ranks' parts, determine which number is a mean over samples and which a sum; what is
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
SHOWN = 0.02  # relative; a root or an exponential of means whose parts differ by less may pass for a mean


class OutputKind(Enum):
    """The combination of the ranks' numbers. FIRST: rank 0's. WHOLE: rank 0's of a run on the whole batch."""

    MEAN = "mean"
    SUM = "sum"
    ROWS = "rows"
    FIRST = "first"
    WHOLE = "whole"


def read(whole: Vector, parts: Sequence[Vector], counts: Sequence[int]) -> Reading:
    """Return the nearer of sum and mean of a batch's parts, which have `counts` rows."""
    readings = Reading.MEAN, Reading.STEP_SUM
    of_mean, of_sum = (float(np.sum(np.square(whole - combined(parts, counts, each)))) for each in readings)
    return Reading.STEP_SUM if of_sum < of_mean else Reading.MEAN


def combined(parts: Sequence[Vector], counts: Sequence[int], found: Reading) -> Vector:
    """Return the whole batch's vector, added as the ranks add it."""
    shares = np.ones(len(counts)) if found is Reading.STEP_SUM else np.divide(counts, sum(counts))
    return np.tensordot(shares, parts, axes=1)


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


def how(whole: Cell, parts: Sequence[Cell], counts: Sequence[int]) -> OutputKind | None:
    """Return the likeliest kind of a cell that draws random numbers; None where all values are 0, which shows nothing.

    `whole` is the batch's cell; `parts` are those of its parts, which have `counts` rows.
    """
    if _have_rows(whole, parts, counts):
        return OutputKind.ROWS
    if whole.dtype.kind == "b" or any(np.shape(part) != np.shape(whole) for part in parts):
        return OutputKind.FIRST
    if not np.any(whole) and not np.any(parts):
        return None
    if whole.dtype.kind in "iu":
        return OutputKind.SUM if np.array_equal(whole, sum(parts)) else OutputKind.FIRST
    total, *rest = (np.ravel(np.asarray(cell, np.float64)) for cell in (whole, *parts))
    if not np.all(np.isfinite([total, *rest])):
        return None
    return OutputKind.SUM if read(total, rest, counts) is Reading.STEP_SUM else OutputKind.MEAN


def exactly(whole: Cell, parts: Sequence[Cell], counts: Sequence[int], inexact: float = ROUNDING) -> OutputKind | None:
    """Return the kind of a cell, WHOLE where it is no mean, sum or rows; None where these values do not show it.

    The arguments are those of `how`. Relative differences up to `inexact` are none.
    """
    if _have_rows(whole, parts, counts):
        same = all(np.shape(part)[1:] == np.shape(whole)[1:] for part in parts)
        return OutputKind.ROWS if same and _near(whole, np.concatenate(parts)) else OutputKind.WHOLE
    if whole.dtype.kind == "b" or any(np.shape(part) != np.shape(whole) for part in parts):
        return OutputKind.WHOLE
    if whole.dtype.kind in "iu":
        counted = OutputKind.SUM if np.any(np.count_nonzero(parts, axis=0) > 1) else None
        return counted if np.array_equal(whole, sum(parts)) else OutputKind.WHOLE
    flat = [np.ravel(np.asarray(cell, np.float64)) for cell in (whole, *parts)]
    size = float(np.max(np.abs(flat), initial=0.0))
    if not size or not np.isfinite(size):
        return None
    total, *rest = (each / size for each in flat)
    found = read(total, rest, counts)
    if np.max(np.abs(total - combined(rest, counts, found))) > inexact:
        return OutputKind.WHOLE
    is_sum = found is Reading.STEP_SUM
    shown = np.sort(np.abs(rest), axis=0)[-2] if is_sum else 2 * np.std(rest, axis=0)
    return (OutputKind.SUM if is_sum else OutputKind.MEAN) if np.max(shown) > SHOWN else None


def _have_rows(whole: Cell, parts: Sequence[Cell], counts: Sequence[int]) -> bool:
    lengths = [len(cell) if np.ndim(cell) else -1 for cell in (whole, *parts)]
    return lengths == [sum(counts), *counts]


def _near(one: Cell, other: Cell) -> bool:
    if one.dtype.kind in "biu":
        return np.array_equal(one, other)
    a, b = (np.asarray(each, np.float64) for each in (one, other))
    size = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))
    return np.allclose(a, b, rtol=0, atol=max(ROUNDING_OF_ROWS, rounding(one)) * size, equal_nan=True)


def rounding(cell: Cell) -> float:
    """Return the relative rounding of a few operations in the cell's own precision."""
    return 0.03 if _is_narrow(cell) else 4 * float(np.finfo(cell.dtype).eps) if cell.dtype.kind == "f" else 0.0


def reading(
    whole: Vector, parts: Sequence[Vector], counts: Sequence[int], known: Reading | None = None
) -> tuple[Reading | None, float]:
    """Return the reading of a gradient and the relative error of the parts under it. None: the gradient was 0.

    `known`: the reading that was found before.
    """
    size = float(np.linalg.norm(whole))
    if not size or not np.isfinite(size):
        return known, 0.0
    found = known or read(whole, parts, counts)
    off = float(np.linalg.norm(whole - combined(parts, counts, found))) / size
    return found, off if np.isfinite(off) else 1.0


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
