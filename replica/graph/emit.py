"""A function's graph, emitted for what a rank holds of its arguments."""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import constant_op, func_graph
from tensorflow.python.ops import handle_data_util

from replica.exchange import Exchange
from replica.graph.flatten import RANDOM, Flat, Ref, eager_attrs
from replica.graph.fold import LARGEST, folded, is_folded
from replica.placement import PARTIAL, REPLICATE, Partial, Placement, Shard, divided, global_shape, local_shape
from replica.plan import Arg, Array, Call, Plan, Shape, plan
from replica.report import Report
from replica.rules.shape import known_outputs
from replica.tensors import PlacementError

PAYING = frozenset(("MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D", "Conv3D", "DepthwiseConv2dNative"))
_SMALL = 4096  # elements of a Partial result that is replicated within the graph, with the other sums


@dataclass(frozen=True)
class Argument:
    """What a function is called with. `shape`: the global one."""

    placement: Placement
    shape: Shape | None
    dtype: Any


@dataclass
class Value:
    """A tensor of the emitted graph. `data`: it depends on more than variables."""

    tensor: Any
    placement: Placement
    shape: Shape | None
    data: bool
    whole: Any = None


@dataclass
class Emitted:
    """The function that was emitted.

    Attributes:
        graph: Takes local tensors, and behind the arguments the elements of `sources`.
        outputs: The placement and global shape of each output.
        used: Arguments whose values went into the graph.
        divides: Some operation works on a rank's part.
        rows: Of the last tensor that was cut for an operation's sake; 0 for none.
    """

    graph: Any
    outputs: list[tuple[Placement, Shape | None]]
    used: set[int] = field(default_factory=set)
    divides: bool = False
    rows: int = 0


class Emitter:
    """Emits one function.

    Args:
        flat: Its operations.
        arguments: Of the call, and behind them the elements that `sources` drew.
        values: Known values of arguments.
        exchange: The collectives.
        report: Notes gathers.
        name: Of the function; collectives are named after it.
    """

    def __init__(
        self,
        flat: Flat,
        arguments: Sequence[Argument],
        values: Sequence[Any],
        exchange: Exchange,
        report: Report,
        name: str,
    ) -> None:
        self._flat, self._arguments, self._eager = flat, arguments, values
        self._exchange, self._report, self._name = exchange, report, name
        self.rank, self.size = exchange.rank, exchange.size
        self._values: dict[Ref, Value] = {}
        self._known: dict[Ref, Array | None] = {}
        self._ops: dict[int, Any] = {}  # what a control dependency on a node waits for
        self._uses = Counter(ref for node in flat.nodes for ref in node.inputs)
        self._waves = 0
        self._last: Any = None
        self.graph: Any = func_graph.FuncGraph(f"divided_{name}")
        self.result = Emitted(self.graph, [])

    def run(self) -> Emitted:
        """Return the emitted function."""
        with self.graph.as_default():
            self._emit_arguments()
            self._emit_nodes()
            self._emit_outputs()
        return self.result

    # -- arguments and results -------------------------------------------------------------------------------------
    def _emit_arguments(self) -> None:
        inputs = [n for n in self._flat.nodes if n.argument is not None]
        sources = self._flat.sources()
        count = len(self._arguments) - sum(len(self._flat.nodes[s].op.outputs) for s in sources)
        placeholders = [self._placeholder(argument) for argument in self._arguments]
        for number, node in enumerate(self._flat.nodes):
            if node.argument is not None:
                self._emit_argument(number, 0, placeholders[node.argument], self._arguments[node.argument])
                handle_data_util.copy_handle_data(node.op.outputs[0], placeholders[node.argument])
        assert len(inputs) == count
        for source in sources:
            for index in range(len(self._flat.nodes[source].op.outputs)):
                self._emit_argument(source, index, placeholders[count], self._arguments[count])
                count += 1
        self.graph.inputs = placeholders

    def _placeholder(self, argument: Argument) -> Any:
        shape = argument.shape
        local = None if shape is None else local_shape(shape, argument.placement, self.rank)
        return tf.compat.v1.placeholder(argument.dtype, local)

    def _emit_argument(self, number: int, index: int, tensor: Any, argument: Argument) -> None:
        data = argument.dtype not in (tf.resource, tf.variant)
        self._values[number, index] = Value(tensor, argument.placement, argument.shape, data)
        self._ops[number] = tensor.op
        self.result.divides |= argument.placement is not REPLICATE

    def _emit_outputs(self) -> None:
        small = [r for r in self._flat.outputs if self._is_small_sum(self._values[r])]
        self._replicate(dict.fromkeys(small))
        for ref in self._flat.outputs:
            value = self._values[ref]
            if ref in small:
                value = Value(value.whole, REPLICATE, value.shape, True)
            self.result.outputs.append((value.placement, value.shape))
            self.graph.outputs.append(tf.identity(value.tensor))
        self.graph.control_outputs = [self._ops[number] for number in sorted(self._flat.controls)]

    def _is_small_sum(self, value: Value) -> bool:
        known = value.shape is not None and None not in value.shape
        return isinstance(value.placement, Partial) and known and value.tensor.shape.num_elements() <= _SMALL

    # -- nodes, in waves: all that needs no collective, then one collective for what is missing ---------------------
    def _emit_nodes(self) -> None:
        waiting = {n: self._before(n) for n in range(len(self._flat.nodes)) if n not in self._ops}
        after: dict[int, list[int]] = {}
        for number, before in waiting.items():
            for each in before:
                after.setdefault(each, []).append(number)
        left = {number: len(before) for number, before in waiting.items()}
        ready = [number for number, count in left.items() if count == 0]
        heapq.heapify(ready)
        blocked: dict[int, list[Ref]] = {}
        while ready or blocked:
            if not ready:
                self._replicate(dict.fromkeys(ref for refs in blocked.values() for ref in refs))
                ready, blocked = sorted(blocked), {}
            number = heapq.heappop(ready)
            missing = self._emit(number)
            if missing:
                blocked[number] = missing
                continue
            for each in after.get(number, ()):
                left[each] -= 1
                if left[each] == 0:
                    heapq.heappush(ready, each)

    def _before(self, number: int) -> set[int]:
        node = self._flat.nodes[number]
        return {n for n in (*(n for n, _ in node.inputs), *node.controls) if n not in self._ops}

    def _emit(self, number: int) -> list[Ref]:
        """Emit a node; or return what must be replicated before."""
        node = self._flat.nodes[number]
        values = [self._values[ref] for ref in node.inputs]
        found = self._planned(number, values)
        if isinstance(found, list):
            for index, constant in enumerate(found):
                self._known[number, index] = constant
                with self.graph.control_dependencies([self._ops[n] for n in sorted(node.controls)]):
                    tensor = constant_op.constant(constant)
                self._values[number, index] = Value(tensor, REPLICATE, constant.shape, True)
            self._ops[number] = tf.no_op() if not found else self._values[number, 0].tensor.op
            return []
        missing = [] if found is None else [*self._missing(node.inputs, found), *self._forks(node.inputs)]
        if missing:
            return missing
        tensors = [v.tensor for v in values] if found is None else self._inputs(node.inputs, found)
        with self.graph.control_dependencies([self._ops[n] for n in sorted(node.controls)]):
            op = self._drawn(node.op, tensors) if node.op.type in RANDOM else self._create(node.op, tensors, found)
            outputs = list(op.outputs)
            if found is not None and found.scale is not None:
                outputs = [t * constant_op.constant(found.scale, t.dtype) for t in outputs]
        self._ops[number] = op
        data = any(v.data for v in values) or not values
        for index, tensor in enumerate(outputs):
            placement = REPLICATE if found is None else found.output(index)
            self._values[number, index] = self._value(node.op, index, tensor, placement, data)
        return []

    def _planned(self, number: int, values: list[Value]) -> Plan | list[Array] | None:
        """Return a plan, constants in place of the operation, or None for an operation on replicated inputs."""
        node = self._flat.nodes[number]
        placed = any(v.placement is not REPLICATE for v in values)
        if not placed and not (node.op.type in PAYING and self._pays(values[0])):
            return None
        args = [
            Arg(v.placement, v.shape, v.tensor.dtype.name, self._knowing(r))
            for v, r in zip(values, node.inputs, strict=True)
        ]
        if not placed:
            rows = (values[0].shape or ())[0] or 0
            self.result.rows = rows
            args[0] = Arg(Shard(0, divided(rows, self.size)), args[0].shape, args[0].dtype)
        call = Call(node.op.type, _Attributes(node.op), tuple(args), self.size)
        constants = known_outputs(call)
        self.result.divides = True
        return constants if constants is not None else plan(call)

    def _pays(self, value: Value) -> bool:
        shape = value.shape or ()
        return value.data and len(shape) > 1 and (shape[0] or 0) >= max(2, self.size) and self.size > 1

    def _missing(self, refs: Sequence[Ref], found: Plan) -> list[Ref]:
        return [
            ref
            for ref, target in zip(refs, found.inputs, strict=True)
            if self._values[ref].placement not in (target, REPLICATE) and self._values[ref].whole is None
        ]

    def _forks(self, refs: Sequence[Ref]) -> list[Ref]:
        """Return small Partials that several operations take: sent once, before each makes another of them."""
        shared = [ref for ref in refs if self._uses[ref] > 1 and self._is_small_sum(self._values[ref])]
        return [ref for ref in shared if self._values[ref].whole is None]

    def _inputs(self, refs: Sequence[Ref], found: Plan) -> list[Any]:
        tensors = [self._input(r, p) for r, p in zip(refs, found.inputs, strict=True)]
        for index, values in found.values.items():
            tensors[index] = constant_op.constant(values[self.rank])
        return tensors

    def _input(self, ref: Ref, target: Placement) -> Any:
        """Return what an operation is given: a constant where the value is known, as its shape may depend on it."""
        known = self._known.get(ref) if target is REPLICATE else None
        return self._converted(self._values[ref], target) if known is None else constant_op.constant(known)

    def _converted(self, value: Value, target: Placement) -> Any:
        if value.placement == target:
            return value.tensor
        whole = value.tensor if value.placement is REPLICATE else value.whole
        if isinstance(target, Shard):
            low, _ = target.bounds(self.rank)
            rank = len(value.shape or ())
            begin = [low if axis == target.axis else 0 for axis in range(rank)]
            size = [target.sizes[self.rank] if axis == target.axis else -1 for axis in range(rank)]
            return tf.slice(whole, begin, size)
        if target is PARTIAL and self.rank != 0:
            return tf.zeros_like(whole)
        return whole

    def _replicate(self, refs: dict[Ref, None]) -> None:
        """One collective for all of these."""
        chosen = [r for r in refs if self._values[r].whole is None and self._values[r].placement is not REPLICATE]
        if not chosen:
            return
        values = [self._values[ref] for ref in chosen]
        placements = [v.placement for v in values]
        name = f"{self._name}.{self._waves}"
        self._waves += 1

        def collective(*arrays: Any) -> list[Array]:
            return self._exchange.replicated(name, [np.asarray(a) for a in arrays], placements)

        with self.graph.control_dependencies([self._last] if self._last is not None else []):
            outputs = tf.numpy_function(collective, [v.tensor for v in values], [v.tensor.dtype for v in values])
        for value, whole in zip(values, outputs, strict=True):
            whole.set_shape(value.shape)
            value.whole = whole
            if isinstance(value.placement, Partial):
                value.tensor, value.placement = whole, REPLICATE
        self._last = outputs[0].op

    def _drawn(self, op: Any, tensors: Sequence[Any]) -> Any:
        """Random numbers from the state of one eager kernel: a function that is emitted anew must not begin anew."""
        attrs, kind = eager_attrs(op), op.type

        def draw(*arrays: Any) -> Any:
            inputs = [constant_op.constant(array) for array in arrays]
            return execute.execute(kind, 1, inputs, attrs, context.context())[0].numpy()

        return tf.numpy_function(draw, list(tensors), op.outputs[0].dtype).op

    # -- operations ------------------------------------------------------------------------------------------------
    def _create(self, op: Any, tensors: Sequence[Any], found: Plan | None) -> Any:
        kind, attrs = op.type, {k: v for k, v in op.node_def.attr.items() if not k.startswith("_")}
        definition: Any = op.op_def
        if found is not None:
            kind = found.op or kind
            attrs.update({name: _attr(value) for name, value in found.attrs.items()})
            definition = definition if found.op is None else None
        self._add_functions(op)
        made = self.graph._create_op_internal(
            kind, list(tensors), [t.dtype for t in op.outputs], name=op.name, attrs=attrs, op_def=definition
        )
        if op.device:
            made._set_device(op.device)
        return made

    def _add_functions(self, op: Any) -> None:
        for attr in op.node_def.attr.values():
            for function in (attr.func, *attr.list.func):
                if function.name:
                    self.graph._add_function_recursive(op.graph._get_function(function.name))

    def _value(self, op: Any, index: int, tensor: Any, placement: Placement, data: bool) -> Value:
        traced = op.outputs[index].shape
        if traced.rank is not None and op.outputs[index].dtype not in (tf.resource, tf.variant):
            tensor.set_shape(_narrowed(traced, tensor.shape, placement, self.rank))
        handle_data_util.copy_handle_data(op.outputs[index], tensor)
        shape: Shape | None = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
        if isinstance(placement, Shard):
            if shape is None or shape[placement.axis] not in (None, placement.sizes[self.rank]):
                raise PlacementError(f"{op.type}: {shape} is no part of {placement}")
            shape = global_shape(shape, placement)
        return Value(tensor, placement, shape, data)

    # -- known values ----------------------------------------------------------------------------------------------
    def _knowing(self, ref: Ref) -> Any:
        return lambda: self._value_of(ref)

    def _value_of(self, ref: Ref) -> Array | None:
        """Return the value of a replicated tensor, where it is known before the graph runs."""
        if ref not in self._known:
            self._known[ref] = None
            node = self._flat.nodes[ref[0]]
            if node.argument is not None:
                self._known[ref] = self._argument_value(node.argument)
            elif is_folded(node.op):
                inputs = [self._value_of(each) for each in node.inputs]
                if all(value is not None for value in inputs):
                    for index, value in enumerate(folded(node.op, [v for v in inputs if v is not None])):
                        self._known[ref[0], index] = value if value.size <= LARGEST else None
        return self._known[ref]

    def _argument_value(self, index: int) -> Array | None:
        value = self._eager[index]
        if value is None or not self._arguments[index].dtype.is_integer:
            return None
        self.result.used.add(index)
        return np.asarray(value)


class _Attributes(dict[str, Any]):
    """An operation's attributes, read when a rule asks for them."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self._op = op

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self._op.get_attr(name)
        except ValueError:
            return default


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
