"""Operations of a traced graph, created again in the emitted one."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.ops import handle_data_util

from client_shim.replica.steps import of_script
from replica.graph.drawing import drawn
from replica.graph.emitted import Value
from replica.graph.flatten import RANDOM, Node
from replica.placement import Placement, Shard, global_shape
from replica.plan import Plan, Shape
from replica.tensors import PlacementError


class Attributes(dict[str, Any]):
    """An operation's attributes, read when a rule asks for them."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self._op = op

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value."""
        try:
            return self._op.get_attr(name)
        except ValueError:
            return default


def created(graph: Any, node: Node, tensors: Sequence[Any], found: Plan | None) -> Any:
    """Create a node's operation in the emitted graph.

    Args:
        graph: The emitted FuncGraph.
        node: Of the traced graph.
        tensors: Its inputs in the emitted graph.
        found: How a rank runs it; None for an operation on replicated inputs.
    """
    op = node.op
    if op.type in RANDOM:
        return drawn(node, tensors)
    kind, attrs = op.type, {k: v for k, v in op.node_def.attr.items() if not k.startswith("_")}
    definition: Any = op.op_def
    if found is not None:
        kind = found.op or kind
        attrs.update({name: _attr(value) for name, value in found.attrs.items()})
        definition = definition if found.op is None else None
    _add_functions(graph, op)
    dtypes = [t.dtype for t in op.outputs]
    made = graph._create_op_internal(kind, list(tensors), dtypes, name=op.name, attrs=attrs, op_def=definition)
    if op.device:
        made._set_device(op.device)
    return made


def output(op: Any, index: int, tensor: Any, placement: Placement, rank: int, *, data: bool) -> Value:
    """Return an output of a created operation, with all that is known of its shape.

    Raises:
        PlacementError: Its shape is not what `rank` holds of `placement`.
    """
    traced = op.outputs[index].shape
    if traced.rank is not None and op.outputs[index].dtype not in (tf.resource, tf.variant):
        tensor.set_shape(_narrowed(traced, tensor.shape, placement, rank))
    handle_data_util.copy_handle_data(op.outputs[index], tensor)
    shape: Shape | None = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    if isinstance(placement, Shard):
        if shape is None or shape[placement.axis] not in (None, placement.sizes[rank]):
            raise PlacementError(f"{op.type}: {shape} is no part of {placement}")
        shape = global_shape(shape, placement)
    return Value(tensor, placement, shape, data)


def where_defined(op: Any) -> str:
    """Return the script's file and line that made an operation."""
    frames = [f for f in reversed(op.traceback or ()) if of_script(f.filename)]
    return f"{frames[0].filename}:{frames[0].lineno}" if frames else "no line of the script"


def _add_functions(graph: Any, op: Any) -> None:
    for attr in op.node_def.attr.values():
        for function in (attr.func, *attr.list.func):
            if function.name:
                graph._add_function_recursive(op.graph._get_function(function.name))


def _attr(value: Any) -> Any:
    if isinstance(value, list):
        return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(i=value))
    return attr_value_pb2.AttrValue(i=value)


def _narrowed(traced: Any, emitted: Any, placement: Placement, rank: int) -> Any:
    """Return what the traced graph knew of a shape and the emitted one does not."""
    shape = traced.as_list()
    if isinstance(placement, Shard):
        shape[placement.axis] = placement.sizes[rank]
    if emitted.rank is not None:
        shape = [t if e is None else e for t, e in zip(shape, emitted.as_list(), strict=True)]
    return shape
