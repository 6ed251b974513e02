"""TensorLists and Optionals in the emitted graph: the shapes of their elements, and lists that are empty."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.compat.tensorflow import constant_op, handle_data_util
from replica.graph.emitted import Items, Undivided, Value
from replica.graph.flatten import GraphNode
from replica.placement import Placement, Replicate, Shard
from replica.plan import Array, Shape
from replica.rules.lists import localized

# Operations that make an empty list or Optional.
_EMPTY = ("EmptyTensorList", "TensorListReserve", "OptionalNone")
_MADE_FOR = {"EmptyTensorList": 0, "TensorListReserve": 0, "TensorListFromTensor": 1, "TensorListScatterV2": 2}


def is_list(tensor: Any) -> bool:
    """Return whether a tensor is a list, or another variant that only its own operations can read."""
    return bool(tensor.dtype == tf.variant)


def described(
    node: GraphNode, made: Value, inputs: Sequence[Value], known: Sequence[Callable[[], Array | None]]
) -> Value:
    """Return `made`, a list that `node` returns, with the shape and the values of its elements.

    Args:
        node: The operation.
        made: The list.
        inputs: The inputs of the operation.
        known: For each input, returns its value where it is known.
    """
    kind = node.op.type
    if kind in _MADE_FOR:
        items: Items | None = () if kind == "EmptyTensorList" else None
        return replace(made, shape=_shape(known[_MADE_FOR[kind]]()), items=items)
    if kind == "TensorListPushBack":
        items = joined_items(inputs[0].items, _integers(inputs[1], known[1]))
        return replace(made, shape=inputs[0].shape, items=items)
    if kind == "TensorListPopBack":
        return replace(made, shape=inputs[0].shape, items=inputs[0].items)
    if kind in ("TensorListSetItem", "TensorListScatterIntoExistingList", "TensorListResize", "ZerosLike"):
        return replace(made, shape=inputs[0].shape)
    return made


def _shape(value: Array | None) -> Shape | None:
    return tuple(None if n < 0 else int(n) for n in value) if value is not None and value.ndim == 1 else None


def _integers(item: Value, known: Callable[[], Array | None]) -> Items | None:
    """Return an element that is a shape or part of one; other elements are not recorded."""
    shape = item.tensor.shape
    if not item.tensor.dtype.is_integer or shape.rank != 1 or not isinstance(item.placement, Replicate):
        return None
    value = known()
    return None if value is None else (tuple(int(n) for n in value),)


def joined_items(left: Items | None, right: Items | None) -> Items | None:
    """Return the union of the possible values of two lists' elements; None if they have more than one value."""
    if left is None or right is None:
        return None
    both = tuple(sorted({*left, *right}))
    return both if len(both) < 2 else None


def copy_handle_data(traced: Any, made: Any, placement: Placement, rank: int) -> None:
    """Copy the known shape of a variable or of a list's elements to `made`, as `rank` has them."""
    if not isinstance(placement, Shard) or not is_list(made):
        handle_data_util.copy_handle_data(traced, made)
        return
    data = handle_data_util.get_handle_data(traced)
    for each in data.shape_and_type:
        dims = each.shape.dim
        if not each.shape.unknown_rank and len(dims) > placement.axis:
            dims[placement.axis].size = placement.sizes[rank]
    handle_data_util.set_handle_data(made, data)


def is_empty(node: GraphNode) -> bool:
    """Return whether a node makes a list without any element."""
    return node.argument is None and node.op.type in _EMPTY


def emptied(graph: Any, node: GraphNode, target: Shard, rank: int, made_for: Array | None, count: Any) -> Any:
    """Return an empty list like that of `node`, for a rank's elements.

    Args:
        graph: The emitted graph.
        node: Makes a list without any element.
        target: The division of the elements.
        rank: The rank.
        made_for: Their global shape, if it is known.
        count: The second input of `node`, in the emitted graph.

    Raises:
        Undivided: The elements have a shape that does not fit `target`.
    """
    shapes = localized(made_for, target)
    if shapes is None:
        raise Undivided("a list was made for elements of another shape")
    attrs = {k: v for k, v in node.op.node_def.attr.items() if not k.startswith("_")}
    inputs = [constant_op.constant(np.asarray(shapes[rank])), count]
    return graph._create_op_internal(node.op.type, inputs, [tf.variant], attrs=attrs, op_def=node.op.op_def).outputs[0]
