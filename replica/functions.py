"""Calls of tf.functions with placed tensors: the traced graph is emitted for them, once for each kind of arguments."""

import contextlib
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import where
from fdt.compat.tensorflow import atomic_function, constant_op, context, handle_data_util, ops
from fdt.patches import Patch
from fdt.typing import Array, Tensor
from replica.convert import Converter, joined
from replica.entry import RowEntry
from replica.graph.control_flow import emitted as emitted_for
from replica.graph.drawing import draws
from replica.graph.emitted import Argument, Emitted
from replica.graph.flatten import RANDOM, Flat, flatten
from replica.graph.interpret import draws_within, interpret
from replica.placement import Shard, global_shape
from replica.plan import PAYING
from replica.report import DivisionReport
from replica.step_count import OptimizerUpdates
from replica.tape import refuse_forward_mode
from replica.tensors import (
    EagerTensor,
    check,
    described,
    is_placed,
    local_array,
    local_shape_of,
    mode,
    place,
    placement_of,
    unrecorded,
    value_bytes,
)
from replica.variables import ReplicatedVariables

_KNOWN_ELEMENTS = 64
_RESOURCE = tf.resource.as_datatype_enum  # variables, which are most of a step's inputs and need no further key
_KINDS = 8  # values of an argument after which it is not treated as a constant, such as a shape


@dataclass
class _Variant:
    """The emitted functions for one kind of arguments, by the values that their graphs contain."""

    used: tuple[int, ...] = ()
    entries: dict[tuple[bytes, ...], tuple[Any, Emitted]] = field(default_factory=dict)
    frozen: set[int] = field(default_factory=set)

    def remember(self, inputs: Sequence[Any], made: Any, result: Emitted) -> None:
        """Keep an emitted function, which `made` runs; after _KINDS of them, values are constants no more."""
        used = tuple(sorted({*self.used, *result.used}))
        if used != self.used:
            self.used, self.entries = used, {}
        self.entries[tuple(value_bytes(inputs[i]) for i in used)] = made, result
        if len(self.entries) > _KINDS:
            self.frozen, self.used, self.entries = {*self.frozen, *used}, (), {}


@dataclass
class _Function:
    """The analysis of a traced function."""

    flat: Flat
    sources: list[int]
    pays: bool
    assigned: list[int]  # indices of the arguments that are variables it assigns
    draws: bool  # it draws elements in its own loops
    random: bool  # it has random operations with a state
    takes: bool  # it computes gradients
    kinds: dict[Any, _Variant] = field(default_factory=dict)


class Functions:
    """The replacement of calls of traced functions from eager code."""

    def __init__(
        self,
        converter: Converter,
        entry: RowEntry,
        variables: ReplicatedVariables,
        updates: OptimizerUpdates,
        report: DivisionReport,
        execute: Any,
    ) -> None:
        self._converter, self._entry, self._report, self._execute = converter, entry, report, execute
        self._variables, self._updates = variables, updates
        self._known: weakref.WeakKeyDictionary[Any, _Function] = weakref.WeakKeyDictionary()

    def patches(self) -> list[Patch]:
        """Return the replacements in TensorFlow."""
        return [Patch(atomic_function.AtomicFunction, "call_flat", self._call_flat)]

    def _call_flat(self, original: Any, function: Any, *args: Any) -> Any:
        if not function._bound_context.executing_eagerly():
            return original(function, *args)
        if mode.undivided:
            return original(function, *(self._converter.whole(a) if is_placed(a) else a for a in args))
        known = self._function(function)
        if known.draws:
            return self._interpreted(function, known, args)
        with self._updates.called([args[i] for i in known.assigned]):
            return self._called(original, function, known, args)

    def _called(self, original: Any, function: Any, known: _Function, args: Sequence[Any]) -> Any:
        if not (known.sources or known.pays or known.random or any(is_placed(a) for a in args)):
            self._count(known, args)
            return original(function, *args)
        if any(is_placed(a) for a in args):
            refuse_forward_mode()
        with unrecorded():
            try:
                inputs = [*args, *self._drawn(known, args)]
            except tf.errors.OutOfRangeError:
                self._ended(original, function, known, args)
                raise
            emitted, result = self._emitted(function, known, inputs)
            if result.rows:
                self._entry.note_product(result.rows)
            self._count(known, args)
            if not (result.divides or known.sources or known.random):
                return original(function, *args)
            return self._run(function, emitted, result, inputs)

    def _count(self, known: _Function, args: Sequence[Any]) -> None:
        if known.takes:
            self._variables.take()
        self._variables.assigned([args[i] for i in known.assigned])

    def _interpreted(self, function: Any, known: _Function, args: Sequence[Any]) -> list[Any]:
        def assigned(handles: Sequence[Any]) -> None:
            self._variables.assigned(handles)
            self._updates.written(handles)

        if known.takes:
            self._variables.take()
        with unrecorded():
            outputs = interpret(known.flat, args, assigned)
        for index, output in enumerate(outputs):
            _handle_data(function, index, output)
        return outputs

    def _function(self, function: Any) -> _Function:
        known = self._known.get(function)
        if known is None:
            flat = flatten(function.graph, len(function.function_type.flat_outputs))
            parts = flat.sources(), flat.has(PAYING), flat.assigned(), draws_within(function.graph), flat.has(RANDOM)
            known = self._known[function] = _Function(flat, *parts, self._variables.takes(function.graph))
        return known

    def _drawn(self, known: _Function, args: Sequence[Any]) -> list[Tensor]:
        """Return the elements that the function would draw, divided. Raises OutOfRangeError as the function would."""
        drawn: list[Tensor] = []
        for number in known.sources:
            node = known.flat.nodes[number]
            iterator = args[known.flat.nodes[node.inputs[0][0]].argument or 0]
            types, shapes = node.op.get_attr("output_types"), node.op.get_attr("output_shapes")
            draw = getattr(tf.raw_ops, node.op.type)
            element = draw(**{node.op.op_def.input_arg[0].name: iterator}, output_types=types, output_shapes=shapes)
            self._entry.batches.drawn(None)
            drawn += self._entry.cut_element(list(element))
        return drawn

    def _ended(self, original: Any, function: Any, known: _Function, args: Sequence[Any]) -> None:
        """Assign what the function assigns when an iterator has ended: all that needs no element of it.

        The iterator's error ends the function, but TensorFlow runs other operations beside it. So Keras counts one
        update more in each epoch of a dataset of unknown length. All ranks take the values of rank 0.
        """
        nodes = known.flat.nodes
        iterators = {nodes[nodes[number].inputs[0][0]].argument for number in known.sources}
        if len(iterators) > 1 or any(is_placed(a) for a in args):  # another iterator would go on by a second element
            return
        exchange, handles = self._converter.exchange, [args[i] for i in known.assigned]
        before = [_read(handle) for handle in handles]
        if exchange.rank == 0:
            with contextlib.suppress(tf.errors.OutOfRangeError):
                original(function, *args)
        after = [_read(handle) for handle in handles]
        flags = [a.tobytes() != b.tobytes() for a, b in zip(before, after, strict=True)]
        if not flags:
            return
        changed = np.flatnonzero(exchange.rank_0s("ended", [np.asarray(flags, np.int64)])[0])
        values = exchange.rank_0s("ended", [after[i] for i in changed]) if len(changed) else []
        for i, value in zip(changed, values, strict=True):
            tf.raw_ops.AssignVariableOp(resource=handles[i], value=tf.constant(value))

    def _emitted(self, function: Any, known: _Function, inputs: Sequence[Any]) -> tuple[Any, Emitted]:
        kind = known.kinds.setdefault(tuple(map(_described, inputs)), _Variant())
        values = tuple(value_bytes(inputs[i]) for i in kind.used)
        found = kind.entries.get(values)
        return found if found is not None else self._emit(function, known, kind, inputs)

    def _emit(self, function: Any, known: _Function, kind: _Variant, inputs: Sequence[Any]) -> tuple[Any, Emitted]:
        name = f"{function.name.decode()}_{ops.uid()}"
        values = [None if i in kind.frozen else _value(t) for i, t in enumerate(inputs)]
        arguments = [_argument(t) for t in inputs]
        plain = re.sub(r"_*\d+|^__", "", function.name.decode())  # the numbers differ between ranks
        result = emitted_for(known.flat, arguments, values, self._converter.exchange, plain)
        made = atomic_function.from_func_graph(f"divided_{name}", result.graph, {})
        kind.remember(inputs, made, result)
        return made, result

    def _run(self, function: Any, emitted: Any, result: Emitted, inputs: Sequence[Any]) -> list[Any]:
        ctx = context.context()
        attrs = tuple(part for pair in ctx.function_call_options.as_attrs().items() for part in pair)
        count = len(result.outputs)
        drawn = [t for node, values in result.drawn for t in draws(node, [constant_op.constant(v) for v in values])]
        try:
            outputs = self._execute(emitted.name.decode(), count, [*inputs, *drawn], attrs, ctx)
        except tf.errors.OpError:
            if self._converter.exchange.failure is not None:  # TensorFlow has wrapped it
                raise self._converter.exchange.failure from None
            self._converter.exchange.failed(f"a tf.function at {where()}")
            raise
        outputs = list(outputs or ())
        for gather in result.gathers:
            self._report.add(*gather)
        for i, output in enumerate(outputs):
            placement, shape = result.outputs[i]
            if isinstance(placement, Shard) and shape is not None:
                check(output, placement, shape, self._converter.rank, function.name.decode())
            outputs[i] = place(output, placement, global_shape(local_shape_of(output), placement))
            _handle_data(function, i, outputs[i])
        joined(outputs)
        return outputs


def _read(handle: Any) -> Array:
    dtype = tf.dtypes.as_dtype(handle._handle_data.shape_and_type[0].dtype)
    return np.asarray(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))


def _handle_data(function: Any, index: int, output: Any) -> None:
    data = function.function_type.flat_outputs[index].dtype._handle_data
    if data:
        handle_data_util.set_handle_data(output, data.shape_inference)


def _described(tensor: Any) -> Any:
    """Return `described`, with all variables alike."""
    if type(tensor) is EagerTensor and tensor._datatype_enum() == _RESOURCE:
        return _RESOURCE
    return described(tensor)


def _argument(tensor: Any) -> Argument:
    shape = None if tensor.dtype in (tf.resource, tf.variant) else tensor._shape_tuple()
    return Argument(placement_of(tensor), shape, tensor.dtype)


def _value(tensor: Any) -> Any:
    if type(tensor) is not EagerTensor or tensor._placement is not None or not tensor.dtype.is_integer:
        return None
    return np.asarray(local_array(tensor)) if int(np.prod(tensor._shape_tuple())) <= _KNOWN_ELEMENTS else None
