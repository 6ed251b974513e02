"""The creation of operations of a traced graph in the emitted graph."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import of_script
from fdt.compat.tensorflow import atomic_function, attr_value_pb2
from replica.graph.drawing import drawn
from replica.graph.emitted import Undivided, Value
from replica.graph.flatten import RANDOM, GraphNode
from replica.graph.lists import copy_handle_data, is_list
from replica.placement import Placement, Shard, global_shape
from replica.plan import Plan, Shape


class OpAttributes(dict[str, Any]):
    """An operation's attributes, read on demand."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self._op = op

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value."""
        try:
            return self._op.get_attr(name)
        except ValueError:
            return default


def created(graph: Any, node: GraphNode, tensors: Sequence[Any], found: Plan | None) -> Any:
    """Create a node's operation in the emitted graph.

    Args:
        graph: The emitted FuncGraph.
        node: A node of the traced graph.
        tensors: Its inputs in the emitted graph.
        found: Its plan; None for an operation on replicated inputs.
    """
    op = node.op
    if op.type in RANDOM:
        return drawn(node, tensors)
    kind, attrs = op.type, {k: v for k, v in op.node_def.attr.items() if not k.startswith("_")}
    definition: Any = op.op_def
    if found is not None:
        kind = found.op or kind
        attrs.update({name: _attr(graph, value) for name, value in found.attrs.items()})
        definition = definition if found.op is None else None
    if found is None or not found.attrs:  # the functions of a divided loop or branch are replaced
        _add_functions(graph, op)
    dtypes = [t.dtype for t in op.outputs]
    made = graph._create_op_internal(kind, list(tensors), dtypes, name=op.name, attrs=attrs, op_def=definition)
    if op.device:
        made._set_device(op.device)
    return made


def output(op: Any, index: int, tensor: Any, placement: Placement, rank: int, *, data: bool) -> Value:
    """Return an output of a created operation, with its known shape.

    Raises:
        Undivided: Its shape is not that of `rank`'s part under `placement`.
    """
    traced = op.outputs[index].shape
    if traced.rank is not None and op.outputs[index].dtype not in (tf.resource, tf.variant):
        tensor.set_shape(_narrowed(traced, tensor.shape, placement, rank))
    copy_handle_data(op.outputs[index], tensor, placement, rank)
    if is_list(tensor):
        return Value(tensor, placement, None, data)
    shape: Shape | None = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    if isinstance(placement, Shard):
        if shape is None or shape[placement.axis] not in (None, placement.sizes[rank]):
            raise Undivided(f"{op.type}: {shape} is not the local shape of {placement}")
        shape = global_shape(shape, placement)
    return Value(tensor, placement, shape, data)


def where_defined(op: Any) -> str:
    """Return the script's file and line that made an operation."""
    frames = [f for f in reversed(op.traceback or ()) if of_script(f.filename)]
    return f"{frames[0].filename}:{frames[0].lineno}" if frames else "an unknown line"


def _add_functions(graph: Any, op: Any) -> None:
    for attr in op.node_def.attr.values():
        for function in (attr.func, *attr.list.func):
            if function.name:
                graph._add_function_recursive(op.graph._get_function(function.name))


def _attr(graph: Any, value: Any) -> Any:
    if isinstance(value, int):
        return attr_value_pb2.AttrValue(i=value)
    if isinstance(value, atomic_function.AtomicFunction):
        return attr_value_pb2.AttrValue(func=_function(graph, value))
    first, many = next(iter(value), 0), attr_value_pb2.AttrValue.ListValue
    if isinstance(first, int):
        return attr_value_pb2.AttrValue(list=many(i=value))
    if isinstance(first, atomic_function.AtomicFunction):
        return attr_value_pb2.AttrValue(list=many(func=[_function(graph, each) for each in value]))
    return attr_value_pb2.AttrValue(list=many(shape=[tf.TensorShape(each).as_proto() for each in value]))


def _function(graph: Any, function: atomic_function.AtomicFunction) -> Any:
    graph._add_function_recursive(function)
    return attr_value_pb2.NameAttrList(name=function.name.decode())


def _narrowed(traced: Any, emitted: Any, placement: Placement, rank: int) -> Any:
    """Return the shape with dimensions from the traced graph where the emitted one does not know them."""
    shape = traced.as_list()
    if isinstance(placement, Shard):
        shape[placement.axis] = placement.sizes[rank]
    if emitted.rank is not None:
        shape = [t if e is None else e for t, e in zip(shape, emitted.as_list(), strict=True)]
    return shape
