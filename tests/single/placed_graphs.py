"""The execution of a traced function as the emitter divides it, with ranks as threads that exchange in memory.

Graphs are interpreted, operation by operation, in a random order that their edges allow. So a missing control
dependency causes an error, and a collective blocks its own rank's thread alone.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, tensor_shape_pb2
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import constant_op, tensor_util

import replica.rules  # noqa: F401  fills the rule table
from replica.exchange import GroupedExchange
from replica.graph.control_flow import emitted
from replica.graph.emitted import Argument, Emitted
from replica.graph.flatten import flatten
from replica.placement import REPLICATE, Placement
from tests.in_process_comm import InProcessComm, on_ranks
from tests.single.placed_execution import joined, locals_of, same
from tests.single.thread_groups import MemoryGroup

Made = tuple[Any, Sequence[Any]]  # a tf.function and its variables


@dataclass
class Ran:
    """One rank's run."""

    group: MemoryGroup
    emitted: Emitted
    outputs: list[Any]
    variables: list[Any]


def divided(
    make: Callable[[], Made],
    arrays: Sequence[Any],
    placements: Sequence[Placement],
    size: int,
    seed: int = 0,
    **options: Any,
) -> list[Ran]:
    """Run a function on every rank, and assert that outputs and variables are those of one process.

    Args:
        make: Returns a new tf.function and its variables.
        arrays: The global arguments.
        placements: Of each argument.
        size: The number of ranks.
        seed: Of the order of operations.
        options: As of a GroupedExchange.
    """
    parts = [locals_of(array, placement, size) for array, placement in zip(arrays, placements, strict=True)]
    made = make()
    concrete = made[0].get_concrete_function(*map(tf.constant, arrays))
    ready = [_prepared(concrete, made[1], arrays, placements, rank, size, options) for rank in range(size)]

    def work(comm: InProcessComm) -> list[Any]:
        group, result, captured, _ = ready[comm.rank]
        group.comm = comm
        inputs = [*(tf.constant(part[comm.rank]) for part in parts), *captured]
        return interpreted(result.graph, inputs, random.Random(seed))

    outputs = on_ranks(size, work)
    values = [[np.asarray(v) for v in variables] for *_, variables in ready]
    ran = [Ran(r[0], r[1], o, v) for r, o, v in zip(ready, outputs, values, strict=True)]
    _verify(ran, *_alone(made, arrays))
    return ran


def _prepared(
    concrete: Any,
    variables: Sequence[Any],
    arrays: Sequence[Any],
    placements: Sequence[Placement],
    rank: int,
    size: int,
    options: Mapping[str, Any],
) -> Any:
    """Emit the traced function for a rank, which has variables of its own."""
    variables = [v if isinstance(v, tf.Variable) else v.value for v in variables]  # of TensorFlow or of Keras
    own = [tf.Variable(v) for v in variables]
    handles = {id(v.handle): each.handle for v, each in zip(variables, own, strict=True)}
    captured = [handles[id(t)] if t.dtype == tf.resource else t for t in concrete.captured_inputs]
    arguments = [Argument(p, a.shape, tf.as_dtype(a.dtype)) for p, a in zip(placements, arrays, strict=True)]
    arguments += [_captured(each) for each in captured]
    known = [a if p is REPLICATE else None for p, a in zip(placements, arrays, strict=True)]
    group = MemoryGroup(rank, size)
    values = [*known, *(None for _ in captured)]
    exchange = GroupedExchange(group, **options)  # type: ignore[arg-type]
    result = emitted(flatten(concrete.graph), arguments, values, exchange, "f")
    return group, result, captured, own


def _captured(tensor: Any) -> Argument:
    return Argument(REPLICATE, None if tensor.dtype == tf.resource else tuple(tensor.shape), tensor.dtype)


def _alone(made: Made, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    function, variables = made
    outputs = function(*map(tf.constant, arrays))
    return [np.asarray(o) for o in tf.nest.flatten(outputs)], [np.asarray(v) for v in variables]


def _verify(ran: list[Ran], outputs: list[Any], variables: list[Any]) -> None:
    for index, expected in enumerate(outputs):
        placement, shape = ran[0].emitted.outputs[index]
        assert shape is None or all(n in (None, m) for n, m in zip(shape, expected.shape, strict=True))
        same(joined([np.asarray(rank.outputs[index]) for rank in ran], placement), expected, 1e-10)
    for rank in ran:
        for found, value in zip(rank.variables, variables, strict=True):
            same(found, value, 1e-10)
    assert all(rank.group.names == ran[0].group.names for rank in ran)


def interpreted(graph: Any, inputs: Sequence[Any], order: random.Random) -> list[Any]:
    """Return the outputs of a graph; what its edges leave open is decided by `order`."""
    values = {t.op.name: [value] for t, value in zip(graph.inputs, inputs, strict=True)}
    left = [op for op in graph.get_operations() if op.name not in values]
    while left:
        ready = [o for o in left if all(b.name in values for b in (*(t.op for t in o.inputs), *o.control_inputs))]
        op = order.choice(ready)
        left.remove(op)
        values[op.name] = _executed(op, [values[t.op.name][t.value_index] for t in op.inputs])
    return [values[t.op.name][t.value_index] for t in graph.outputs]


def _executed(op: Any, inputs: list[Any]) -> list[Any]:
    if op.type == "Const":
        return [constant_op.constant(tensor_util.MakeNdarray(op.get_attr("value")), op.outputs[0].dtype)]
    if op.type == "NoOp":
        return []
    attrs = [part for a in op.op_def.attr for part in (a.name, _plain(op.get_attr(a.name)))]
    return list(execute.execute(op.type, len(op.outputs), inputs, tuple(attrs), context.context()) or ())


def _plain(value: Any) -> Any:
    """Return an attribute as eager operations take it."""
    if isinstance(value, tf.DType):
        return value.as_datatype_enum
    if isinstance(value, attr_value_pb2.NameAttrList):
        return value.name.encode()
    if isinstance(value, tensor_shape_pb2.TensorShapeProto):
        return None if value.unknown_rank else [d.size for d in value.dim]
    return [_plain(each) for each in value] if isinstance(value, list) else value
