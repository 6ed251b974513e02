"""The exchange of IndexedSlices, the gradients of embeddings."""

from typing import Any

import tensorflow as tf

from fdt.typing import Tensor
from hfdt.worker.step_context import StepContext
from replica.graph.flatten import function_graph

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_Calls = tuple[tuple[Any, Any], ...]  # the calls around a tensor, each with the graph that it runs
_STATE = ("ReadVariableOp", "ResourceGather", "VarHandleOp")  # variables are alike on all ranks


class Gather:
    """The IndexedSlices of all ranks, concatenated as on a single machine.

    They are not summed into a dense tensor. Keras 3 optimizers update each slice separately, even where indices repeat,
    so a dense gradient would give another step. Each rank adds its rows, at their position, to zeros. Where every rank
    has the same indices, such as those of positions, a rank's values are a part of one machine's, and are summed.
    """

    def __init__(self, step: StepContext, slices: list[Any]) -> None:
        self._alike = [_is_alike(s.indices) for s in slices]
        own = tf.stack([tf.where(step.mine > 0, tf.shape(s.indices, tf.int64)[0], 0) for s in slices])
        place = tf.one_hot(step.comm.rank, step.comm.size, dtype=tf.int64)
        counts = step.sum([own[:, None] * place[None, :]], "rows")[0]  # (slices, ranks)
        self._slices, self._own = slices, own
        self._before = tf.reduce_sum(counts[:, : step.comm.rank], axis=1)
        self._behind = tf.reduce_sum(counts[:, step.comm.rank + 1 :], axis=1)

    def values(self) -> list[Tensor]:
        return [self._placed(i, s.values) for i, s in enumerate(self._slices)]

    def indices(self) -> list[Tensor]:
        """Return the indices to add: those that differ between ranks. TensorFlow folds the sum of a constant."""
        given = enumerate(zip(self._slices, self._alike, strict=True))
        return [self._placed(i, tf.cast(s.indices, tf.int64)) for i, (s, alike) in given if not alike]

    def whole(self, added: list[Tensor]) -> list[Tensor]:
        """Return the indices of each gradient, those of `indices` as `added` has them."""
        sums = iter(added)
        given = zip(self._slices, self._alike, strict=True)
        return [s.indices if alike else tf.cast(next(sums), s.indices.dtype) for s, alike in given]

    def _placed(self, index: int, rows: Tensor) -> Tensor:
        if self._alike[index]:
            return rows
        paddings = [[self._before[index], self._behind[index]], *[[0, 0]] * (rows.shape.rank - 1)]
        return tf.pad(rows[: self._own[index]], paddings)


def summed_by_index(whole: Any, own: Any) -> Any:
    """Add rows of equal indices in `whole` where a lookup of unique indices (of sparse rows) made the slices `own`."""
    if tf.executing_eagerly() or not _are_unique(own.indices):
        return whole
    indices, place = tf.unique(whole.indices)
    values = tf.math.unsorted_segment_sum(whole.values, place, tf.size(indices))
    return tf.IndexedSlices(values, indices, whole.dense_shape)


def _are_unique(indices: Tensor) -> bool:
    """Return whether these are the unique values of a tensor, also in another shape or type, or in a function."""
    calls: list[tuple[Any, Any]] = []
    while True:
        op = indices.op
        if op.type in ("Reshape", "Identity", "Cast"):
            indices = op.inputs[0]
        elif op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            calls.append((op, function_graph(op.graph, op.get_attr("f").name)))
            indices = calls[-1][1].outputs[indices.value_index]
        elif op.type == "Placeholder" and calls:
            call, graph = calls.pop()
            indices = call.inputs[[t.op for t in graph.inputs].index(op)]
        else:
            return bool(op.type.startswith("Unique") and indices.value_index == 0 and indices.shape.rank == 1)


def _is_alike(indices: Tensor) -> bool:
    """Return whether these are the same indices for any rows of a batch: constants, or positions of a static axis.

    The search is of the operations that make them. A batch's tensor may give only the lengths of its later axes.
    """
    if tf.executing_eagerly():
        return False
    seen = set[Any]()
    remaining: list[tuple[Tensor, _Calls]] = [(indices, ())]
    while remaining:
        tensor, calls = remaining.pop()
        if (tensor.ref(), calls) in seen:
            continue
        seen.add((tensor.ref(), calls))
        found = _sources(tensor, calls)
        if found is None:
            return False
        remaining += found
    return True


def _sources(tensor: Tensor, calls: _Calls) -> list[tuple[Tensor, _Calls]] | None:
    """Return what a tensor is computed from, each in its calls; None where it is the batch's, or may be random."""
    op = tensor.op
    if _is_later_length(tensor):
        return []
    if op.type in _CALLS:
        graph = function_graph(op.graph, op.get_attr("f").name)
        return [(graph.outputs[tensor.value_index], (*calls, (op, graph)))]
    if op.type == "Placeholder":
        if calls:
            call, graph = calls[-1]
            return [(call.inputs[[t.op for t in graph.inputs].index(op)], calls[:-1])]
        outer = next((given for given, inner in op.graph.captures if inner is tensor), None)
        if outer is None:
            return None
        return [] if hasattr(outer, "numpy") else [(outer, ())]
    if op.type in _STATE:
        return [(t, calls) for t in op.inputs if t.dtype != tf.resource]
    if op.op_def.is_stateful or any(t.dtype == tf.resource for t in op.inputs):
        return None
    return [(t, calls) for t in op.inputs]


def _is_later_length(tensor: Tensor) -> bool:
    """Return whether this is the length of an axis behind the first, as `tf.shape(x)[1]` is: it counts no rows."""
    op = tensor.op
    if op.type == "Unpack" and op.inputs[0].op.type == "Shape":
        return bool(tensor.value_index > 0)
    if op.type != "StridedSlice" or op.inputs[0].op.type != "Shape":
        return False
    begin, rank = tf.get_static_value(op.inputs[1]), op.inputs[0].shape[0]
    if begin is None or op.get_attr("begin_mask") or op.get_attr("new_axis_mask"):
        return False
    return bool(begin[0] > 0 or (rank is not None and begin[0] + rank > 0 > begin[0]))
