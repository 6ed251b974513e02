"""The rows of the first batch that a probe computes, by the cost of a traced step."""

import math
from typing import Any

import tensorflow as tf

from fdt.data import source

BUDGET = 5e8  # multiplications of a forward and backward pass, 0.05 s (matrices) to 0.5 s (convolutions) in float64


def few_rows(batch: Any, row_cost: float, ranks: int) -> Any:
    """Return the first rows of a batch: half, a quarter, ... until a step costs BUDGET or a rank would have under four.

    Halves, because rows may belong together in pairs.
    """
    rows, parts = int(source.rows(batch)), 1
    while math.isfinite(row_cost) and rows * row_cost > BUDGET and rows % 2 == 0 and rows // 2 >= 4 * ranks:
        rows, parts = rows // 2, parts * 2
    return source.cut_between(batch, 0, 1, parts)[0]


def rows_of(batches: Any) -> int:
    """Return the rows of a Source's batches; 0 if it has none."""
    try:
        return int(batches.batch_size or source.rows(batches.first_batch()))
    except IndexError:  # no data: Keras raises its own error
        return 0


def last_rows(batches: Any) -> int:
    """Return the rows of an epoch's last batch, where a Source's other batches are known to have more; else 0."""
    rows, size, steps = batches.samples, batches.batch_size, batches.steps
    return int(rows % size) if rows and size and steps and steps * size > rows else 0


def short_batch(batch: Any, rows: int, row_cost: float, ranks: int) -> Any:
    """Return the first `rows` of a batch; None if it has no more, or where they cost too much."""
    total = int(source.rows(batch))
    probed = int(source.rows(few_rows(batch, row_cost, ranks)))
    if not 0 < rows < total or (rows > probed and rows * row_cost > BUDGET):
        return None
    return source.cut_between(batch, 0, rows, total)[0]


def uneven(batch: Any) -> Any:
    """Return a batch whose first rows of ragged tensors and of texts are twice as long; None if it has neither."""
    half = int(source.rows(batch)) // 2

    def longer(part: Any) -> Any:
        first = part[:half]
        if isinstance(part, tf.RaggedTensor):
            return tf.concat([tf.concat([first, first], 1), part[half:]], 0)
        return tf.concat([tf.strings.join([first, first], " "), part[half:]], 0)

    def changes(part: Any) -> bool:
        if isinstance(part, tf.RaggedTensor):
            return part.shape[1] is None
        return isinstance(part, tf.Tensor) and part.dtype == tf.string

    if not any(map(changes, tf.nest.flatten(batch))):
        return None
    return tf.nest.map_structure(lambda part: longer(part) if changes(part) else part, batch)


def cost_of_a_row(graph: Any) -> float:
    """Return the multiplications of a traced step for one row, without those in loops and called functions."""
    return float(sum(map(_cost, graph.get_operations())))


def _cost(op: Any) -> int:
    shapes = [t.shape for t in op.outputs if t.shape.rank]
    if not shapes or shapes[0][0] is not None:
        return 0
    elements: int = math.prod(d or 1 for d in shapes[0].as_list())
    weights = op.inputs[1].shape if len(op.inputs) > 1 else None
    if op.type not in ("Conv2D", "Conv3D", "MatMul", "BatchMatMulV2", "DepthwiseConv2dNative") or not weights:
        return elements
    summed = weights[:-1] if op.type.startswith("Conv") else weights[-2:-1]
    depth: int = math.prod(d or 1 for d in summed.as_list())
    return 3 * elements * depth
