"""The exchange of IndexedSlices, the gradients of embeddings."""

from typing import Any

import tensorflow as tf

from fdt.typing import Tensor
from hfdt.worker.step_context import StepContext
from replica.graph.flatten import function_graph

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_Calls = tuple[tuple[Any, Any], ...]  # the calls around a tensor, each with the graph that it runs
_SAME_ROWS = ("Identity", "Cast")  # their output has the axes of their input


class Gather:
    """The IndexedSlices of all ranks, concatenated as on a single machine.

    They are not summed into a dense tensor. Keras 3 optimizers update each slice separately, even where indices repeat,
    so a dense gradient would give another step. Each rank adds its rows, at their position, to zeros. Where every rank
    has the same indices, such as those of positions, a rank's values are a part of one machine's, and are summed.
    """

    def __init__(self, step: StepContext, slices: list[Any], alike: list[bool]) -> None:
        """Begin the exchange of `slices`. `alike`: by slice, whether every rank has the same indices."""
        self._alike = alike
        own = tf.stack([tf.where(step.mine > 0, tf.shape(s.indices, tf.int64)[0], 0) for s in slices])
        place = tf.one_hot(step.comm.rank, step.comm.size, dtype=tf.int64)
        counts = step.sum([own[:, None] * place[None, :]], "rows")[0]  # (slices, ranks)
        self._slices, self._own = slices, own
        self._before = tf.reduce_sum(counts[:, : step.comm.rank], axis=1)
        self._behind = tf.reduce_sum(counts[:, step.comm.rank + 1 :], axis=1)

    def values(self) -> list[Tensor]:
        return [self._placed(i, s.values) for i, s in enumerate(self._slices)]

    def indices(self) -> list[Tensor]:
        """Return the indices to add. The others are not sent: each rank has them."""
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
    calls: _Calls = ()
    while True:
        if (found := _through_call(indices, calls)) is not None:
            indices, calls = found
        elif indices.op.type in ("Reshape", "Identity", "Cast"):
            indices = indices.op.inputs[0]
        else:
            return bool(indices.op.type.startswith("Unique") and indices.value_index == 0 and indices.shape.rank == 1)


def _through_call(tensor: Tensor, calls: _Calls) -> tuple[Tensor, _Calls] | None:
    """Return what a call returns as `tensor`, or gives as this argument, in its calls; None for another tensor."""
    op = tensor.op
    if op.type in _CALLS:
        graph = function_graph(op.graph, op.get_attr("f").name)
        return graph.outputs[tensor.value_index], (*calls, (op, graph))
    if op.type == "Placeholder" and calls:
        call, graph = calls[-1]
        return call.inputs[[t.op for t in graph.inputs].index(op)], calls[:-1]
    return None


def is_alike(indices: Tensor) -> bool:
    """Return whether these are the same indices for any rows of a batch: constants, or positions of a later axis.

    It follows the operations that make the indices. Their graph must be traced for any number of rows: with a static
    number, TensorFlow makes constants of tensors that have a row for each of the batch's.
    """
    seen = set[Any]()
    remaining: list[tuple[Tensor, _Calls]] = [(indices, ())]
    while remaining:
        tensor, calls = remaining.pop()
        if (tensor.ref(), calls) in seen:
            continue
        seen.add((tensor.ref(), calls))
        found = [] if _is_later_length(tensor, calls) else _sources(tensor, calls)
        if found is None:
            return False
        remaining += found
    return True


def _sources(tensor: Tensor, calls: _Calls) -> list[tuple[Tensor, _Calls]] | None:
    """Return what a tensor is computed from, each with the calls around it; None where ranks may have others.

    They may have others of the batch, of variables such as the states of random number generators, and of random
    numbers.
    """
    if (found := _through_call(tensor, calls)) is not None:
        return [found]
    op = tensor.op
    if op.type == "Placeholder":
        return _captured(tensor)
    if op.op_def.is_stateful or op.type.startswith("Stateless") or any(t.dtype == tf.resource for t in op.inputs):
        return None
    return [(t, calls) for t in op.inputs]


def _captured(argument: Tensor) -> list[tuple[Tensor, _Calls]] | None:
    """Return what an argument is in the graph around its function, [] for a constant; None for one of the step."""
    captures = getattr(argument.op.graph, "captures", ())
    outer = next((given for given, inner in captures if inner is argument), None)
    if outer is None:
        return None
    return [] if hasattr(outer, "numpy") else [(outer, ())]


def _is_later_length(tensor: Tensor, calls: _Calls) -> bool:
    """Return whether this is the length of a later axis of the step's batch, as `tf.shape(x)[1]` is.

    The first axis counts rows. Ranks have parts of one batch, so the lengths of its other axes are the same.
    """
    op = tensor.op
    if op.type not in ("Unpack", "StridedSlice") or op.inputs[0].op.type != "Shape":
        return False
    if not _is_of_batch(op.inputs[0].op.inputs[0], calls):
        return False
    if op.type == "Unpack":
        return bool(tensor.value_index > 0)
    begin, _, stride = map(tf.get_static_value, op.inputs[1:4])
    rank = op.inputs[0].shape[0]
    if begin is None or stride is None or len(begin) != 1 or stride[0] < 1:
        return False
    if op.get_attr("begin_mask") or op.get_attr("new_axis_mask") or op.get_attr("ellipsis_mask"):
        return False
    return bool(begin[0] > 0 or (rank is not None and begin[0] < 0 < begin[0] + rank))


def _is_of_batch(tensor: Tensor, calls: _Calls) -> bool:
    """Return whether a tensor is an argument of the step, or a lookup of one's values, with the argument's axes."""
    while True:
        op = tensor.op
        if (found := _through_call(tensor, calls)) is not None:
            tensor, calls = found
        elif op.type in _SAME_ROWS:
            tensor = op.inputs[0]
        elif op.type in ("ResourceGather", "GatherV2") and op.get_attr("batch_dims") == 0:
            if op.type == "GatherV2" and tf.get_static_value(op.inputs[2]) != 0:
                return False
            tensor = op.inputs[1]
        elif op.type == "Placeholder":
            outer = _captured(tensor)
            if not outer:
                return outer is None
            tensor, calls = outer[0]
        else:
            return False
