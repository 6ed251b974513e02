"""The emitter of a function's graph for a rank's parts of its arguments."""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.compat.tensorflow import constant_op, func_graph
from replica.exchange import GroupedExchange
from replica.graph.collective import added_collectives
from replica.graph.emitted import Argument, Emitted, Value
from replica.graph.flatten import RANDOM, Flat, Ref
from replica.graph.known import KnownValues
from replica.graph.lists import copy_handle_data
from replica.graph.operations import OpAttributes, created, output, where_defined
from replica.placement import PARTIAL, REPLICATE, Partial, Placement, Shard, divided, local_shape
from replica.plan import PAYING, Arg, Array, OpCall, Plan, Shape, of_lists_alone, pays, plan, replicated
from replica.rules.shape import ASKING, known_outputs

_SMALL = 4096  # elements up to which a Partial result is replicated in the graph, with the other sums


class Emitter:
    """The emitter of one function, in which loops, branches and lists are replicated.

    Args:
        flat: Its operations.
        arguments: Those of the call, followed by the elements that `sources` drew.
        values: Known values of arguments.
        exchange: The collectives.
        name: The name of the function, which its collectives share.
    """

    _within = False  # whether this is a function of a loop or a branch
    _texts = False  # whether strings may be divided: nothing is sent

    def __init__(
        self, flat: Flat, arguments: Sequence[Argument], values: Sequence[Any], exchange: GroupedExchange, name: str
    ) -> None:
        self._flat, self._arguments = flat, arguments
        self._exchange, self._name = exchange, name
        self.rank, self.size = exchange.rank, exchange.size
        self._values: dict[Ref, Value] = {}
        self._known = KnownValues(flat, arguments, values)
        self._ops: dict[int, Any] = {}  # node -> the operation that stands for it in control dependencies
        self._uses = Counter(ref for node in flat.nodes for ref in node.inputs)
        self._waves = 0
        self._last: Any = None
        self.graph: Any = func_graph.FuncGraph(f"divided_{name}")
        self._divides, self._rows = False, 0  # as in Emitted
        self._gathers: list[tuple[str, str, int]] = []
        self._drawn: list[tuple[Any, list[Array]]] = []

    def run(self) -> Emitted:
        """Return the emitted function."""
        with self.graph.as_default():
            self._emit_arguments()
            self._emit_nodes()
            outputs = self._emit_outputs()
        return Emitted(self.graph, outputs, self._known.used, self._divides, self._rows, self._gathers, self._drawn)

    # -- arguments and results -------------------------------------------------------------------------------------
    def _emit_arguments(self) -> None:
        inputs = [n for n in self._flat.nodes if n.argument is not None]
        sources = [] if self._within else self._flat.sources()
        count = len(self._arguments) - sum(len(self._flat.nodes[s].op.outputs) for s in sources)
        placeholders = [self._placeholder(argument) for argument in self._arguments]
        for number, node in enumerate(self._flat.nodes):
            if node.argument is not None:
                self._emit_argument(number, 0, placeholders[node.argument], self._arguments[node.argument])
                placement = self._arguments[node.argument].placement
                copy_handle_data(node.op.outputs[0], placeholders[node.argument], placement, self.rank)
        assert len(inputs) == count
        for source in sources:
            for index in range(len(self._flat.nodes[source].op.outputs)):
                self._emit_argument(source, index, placeholders[count], self._arguments[count])
                count += 1
        self.graph.inputs = placeholders

    def _placeholder(self, argument: Argument) -> Any:
        shape = None if argument.dtype == tf.variant else argument.shape
        local = None if shape is None else local_shape(shape, argument.placement, self.rank)
        return tf.compat.v1.placeholder(argument.dtype, local)

    def _emit_argument(self, number: int, index: int, tensor: Any, argument: Argument) -> None:
        data = argument.dtype not in (tf.resource, tf.variant)
        self._values[number, index] = Value(tensor, argument.placement, argument.shape, data, items=argument.items)
        self._ops[number] = tensor.op
        self._divides |= argument.placement is not REPLICATE

    def _emit_outputs(self) -> list[tuple[Placement, Shape | None]]:
        self._replicate(dict.fromkeys(self._small_outputs()))
        values = [self._values[ref] for ref in self._flat.outputs]
        self.graph.outputs.extend(tf.identity(value.tensor) for value in values)
        self.graph.control_outputs = [self._ops[number] for number in sorted(self._flat.controls)]
        return [(value.placement, value.shape) for value in values]

    def _small_outputs(self) -> list[Ref]:
        """Return the outputs emitted so far that are replicated within the graph."""
        refs = [ref for ref in self._flat.outputs if ref in self._values]
        return [ref for ref in refs if self._is_small_sum(self._values[ref])]

    def _is_small_sum(self, value: Value) -> bool:
        known = value.shape is not None and None not in value.shape
        return isinstance(value.placement, Partial) and known and value.tensor.shape.num_elements() <= _SMALL

    # -- nodes, in waves: all nodes that need no collective, then one collective for missing inputs -----------------
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
                missing = [ref for refs in blocked.values() for ref in refs]
                self._replicate(dict.fromkeys([*missing, *self._small_outputs()]))
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
        """Emit a node, or return the inputs that must be replicated before."""
        node = self._flat.nodes[number]
        if node.op.type in RANDOM and self._drawn_before(number):
            return []
        values = [self._values[ref] for ref in node.inputs]
        found = self._planned(number, values)
        if isinstance(found, list):
            for index, constant in enumerate(found):
                self._known.note((number, index), constant)
                with self.graph.control_dependencies([self._ops[n] for n in sorted(node.controls)]):
                    tensor = constant_op.constant(constant)
                self._values[number, index] = Value(tensor, REPLICATE, constant.shape, True)
            self._ops[number] = tf.no_op() if not found else self._values[number, 0].tensor.op
            return []
        missing = [] if found is None else [*self._missing(node.inputs, found), *self._forks(node.inputs)]
        if missing:
            self._note_gathers(node.op, missing)
            return missing
        tensors = [v.tensor for v in values] if found is None else self._inputs(node.inputs, found)
        with self.graph.control_dependencies([self._ops[n] for n in sorted(node.controls)]):
            op = created(self.graph, node, tensors, found)
            outputs = list(op.outputs)
            if found is not None and found.scale is not None:
                outputs = [t * constant_op.constant(found.scale, t.dtype) for t in outputs]
        self._ops[number] = op
        data = any(v.data for v in values) or not values
        for index, tensor in enumerate(outputs):
            placement = REPLICATE if found is None else found.output(index)
            self._values[number, index] = output(node.op, index, tensor, placement, self.rank, data=data)
        return []

    def _drawn_before(self, number: int) -> bool:
        """Take the outputs of a random operation as arguments, where its inputs are known."""
        node = self._flat.nodes[number]
        known = [self._known.value(ref) for ref in node.inputs]
        inputs = [value for value in known if value is not None]
        if len(inputs) < len(known):
            return False
        self._drawn.append((node, inputs))
        for index, traced in enumerate(node.op.outputs):
            made = tf.compat.v1.placeholder(traced.dtype, _drawn_shape(node.op, traced, inputs))
            self.graph.inputs.append(made)
            shape = None if made.shape.rank is None else tuple(made.shape.as_list())
            self._values[number, index] = Value(made, REPLICATE, shape, True)
            self._ops[number] = made.op
        return True

    def _planned(self, number: int, values: list[Value]) -> Plan | list[Array] | None:
        """Return a plan, constants in place of the operation, or None for an operation on replicated inputs."""
        node = self._flat.nodes[number]
        placed = any(v.placement is not REPLICATE for v in values)
        if not placed and not (node.op.type in PAYING and self._pays(values[0])):
            return self._known_shape(node.op, values)
        args = [
            Arg(v.placement, v.shape, v.tensor.dtype.name, partial(self._known.value, r))
            for v, r in zip(values, node.inputs, strict=True)
        ]
        if not placed:
            rows = (values[0].shape or ())[0] or 0
            self._rows = rows
            args[0] = Arg(Shard(0, divided(rows, self.size)), args[0].shape, args[0].dtype)
        call = OpCall(node.op.type, OpAttributes(node.op), tuple(args), self.size, self._within)
        constants = known_outputs(call)
        self._divides = True
        if node.op.type == "LookupTableFindV2" and node.op.outputs[0].shape.rank is None:
            return replicated(call)  # a table that changes; rows of values of an unknown shape cannot be placed
        return constants if constants is not None else self._plan(call)

    def _plan(self, call: OpCall) -> Plan:
        return replicated(call) if of_lists_alone(call.op) else plan(call, texts=self._texts)

    def _known_shape(self, op: Any, values: list[Value]) -> list[Array] | None:
        """Return a requested shape, also of replicated tensors: a random operation may need it as a known value."""
        if op.type not in ASKING:
            return None
        args = tuple(Arg(v.placement, v.shape, v.tensor.dtype.name) for v in values)
        return known_outputs(OpCall(op.type, OpAttributes(op), args, self.size))

    def _pays(self, value: Value) -> bool:
        return value.data and pays(value.shape or (), self.size)

    def _missing(self, refs: Sequence[Ref], found: Plan) -> list[Ref]:
        return [
            ref
            for ref, target in zip(refs, found.inputs, strict=True)
            if self._values[ref].placement not in (target, REPLICATE) and self._values[ref].whole is None
        ]

    def _note_gathers(self, op: Any, refs: Sequence[Ref]) -> None:
        shards = [v for v in map(self._values.__getitem__, refs) if isinstance(v.placement, Shard)]
        size = sum(int(np.prod([n or 1 for n in v.shape or ()])) * v.tensor.dtype.size for v in shards)
        if size:
            self._gathers.append((op.type, where_defined(op), size))

    def _forks(self, refs: Sequence[Ref]) -> list[Ref]:
        """Return small Partials that several operations take: sent once, before operations derive others from them."""
        shared = [ref for ref in refs if self._uses[ref] > 1 and self._is_small_sum(self._values[ref])]
        return [ref for ref in shared if self._values[ref].whole is None]

    def _inputs(self, refs: Sequence[Ref], found: Plan) -> list[Any]:
        tensors = [self._input(r, p) for r, p in zip(refs, found.inputs, strict=True)]
        for index, values in found.values.items():
            tensors[index] = constant_op.constant(values[self.rank])
        return tensors

    def _input(self, ref: Ref, target: Placement) -> Any:
        """Return an operation's input: a constant where the value is known, as its shape may depend on it."""
        known = self._known.found(ref) if target is REPLICATE else None
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
        """Replicate all of these, by one collective for each bucket."""
        chosen = [
            r for r in sorted(refs) if self._values[r].whole is None and self._values[r].placement is not REPLICATE
        ]
        if not chosen:
            return
        values = [self._values[ref] for ref in chosen]
        name = f"{self._name}.{self._waves}"
        self._waves += 1
        with self.graph.control_dependencies([self._last] if self._last is not None else []):
            wholes, self._last = added_collectives(self._exchange, name, values)
        for ref, value, whole in zip(chosen, values, wholes, strict=True):
            whole.set_shape(value.shape)
            both: dict[str, Any] = (
                {"tensor": whole, "placement": REPLICATE} if isinstance(value.placement, Partial) else {}
            )
            self._values[ref] = replace(value, whole=whole, **both)


def _drawn_shape(op: Any, traced: Any, inputs: Sequence[Array]) -> Any:
    """Return the shape of random numbers, in most operations the first input."""
    return [int(n) for n in inputs[0]] if op.op_def.input_arg[0].name == "shape" else traced.shape
