"""Eager operations under the rule table, below the gradient tape.

Generated operations call `TFE_Py_FastPathExecute`. With a placed input it raises TensorFlow's own fallback exception;
the generated fallback then calls `execute.execute`, replaced here, and records the gradient with the original tensors.
No collective is ever differentiated.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import replica.rules  # noqa: F401  fills the rule table
from client_shim.replica.steps import where
from fdt.compat.tensorflow import constant_op, core, pywrap_tfe, script_ops
from fdt.patches import Patch
from fdt.typing import Tensor
from replica.convert import Converter
from replica.entry import RowEntry
from replica.graph.flatten import WRITES
from replica.placement import REPLICATE, Placement, Shard, divided, global_shape
from replica.plan import PAYING, Arg, Array, OpCall, Plan, pays, plan
from replica.report import DivisionReport
from replica.rules.shape import known_outputs
from replica.tape import refuse_forward_mode
from replica.tensors import (
    EagerTensor,
    PlacedSpec,
    PlacementError,
    check,
    described,
    local_array,
    local_shape_of,
    marked,
    mode,
    placement_of,
    spec_of,
    undivided,
    unrecorded,
    value_bytes,
)
from replica.variables import ReplicatedVariables

_PLANS_KEPT = 1000  # plans of one operation, by the values that its rule reads
_KNOWN_ELEMENTS = 64  # the largest input whose value a rule may read
_FALLBACK = core._FallbackException
_UNKNOWN: Any = object()


class Eager:
    """The execution of eager operations on placed tensors.

    Args:
        converter: Changes placements.
        entry: Records divided rows.
        variables: Counts assignments.
        report: Records gathers.
        original: TensorFlow's own `execute`.
    """

    def __init__(
        self,
        converter: Converter,
        entry: RowEntry,
        variables: ReplicatedVariables,
        report: DivisionReport,
        original: Any,
    ) -> None:
        self._converter, self._entry, self._report, self._original = converter, entry, report, original
        self._variables = variables
        self.rank, self.size = converter.rank, converter.size
        self._plans: dict[Any, _Learnt] = {}

    def patches(self) -> list[Patch]:
        """Return the replacements in TensorFlow, without the two functions below, which are too hot for a wrapper."""
        return [
            Patch(pywrap_tfe, "TFE_Py_TensorShapeSlice", _shape_slice),
            Patch(script_ops.EagerFunc, "_call", _in_python),
            Patch(script_ops.FuncRegistry, "__call__", _in_python),
        ]

    def fast_path(self, original: Any) -> Any:
        """Return the replacement of TFE_Py_FastPathExecute."""
        kinds: dict[str, str] = {}
        assigned = self._variables.assigned

        def fast_path(ctx: Any, op: str, name: Any, *args: Any) -> Any:
            does = kinds.get(op)
            if does is None:
                does = kinds[op] = "pays" if op in PAYING else "writes" if op.startswith(WRITES) else "other"
            if does == "writes":
                assigned(args[:1])
            for arg in args:
                kind = type(arg)
                if kind is EagerTensor:
                    if arg._placement is not None:
                        raise _FALLBACK
                elif kind is list or kind is tuple:
                    for each in arg:
                        if type(each) is EagerTensor and each._placement is not None:
                            raise _FALLBACK
            if does == "pays":
                raise _FALLBACK
            return original(ctx, op, name, *args)

        return fast_path

    def execute(self, op_name: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, name: Any = None) -> Any:
        """Replace `execute.execute`."""
        op = op_name.decode() if type(op_name) is bytes else op_name
        placed = False
        for tensor in inputs:
            if type(tensor) is EagerTensor and tensor._placement is not None:
                placed = True
                break
        if not placed and not (op in PAYING and self._pays(inputs[0])):
            return self._original(op_name, num_outputs, inputs, attrs, ctx, name)
        if mode.undivided:
            return self._undivided(op_name, num_outputs, inputs, attrs, ctx, name)
        if not placed:
            self._entry.note_product(inputs[0]._shape_tuple()[0])
        if pywrap_tfe.TFE_Py_TapeSetIsEmpty():
            return self._placed(op, num_outputs, inputs, attrs, ctx, name)
        refuse_forward_mode()
        with unrecorded():
            return self._placed(op, num_outputs, inputs, attrs, ctx, name)

    def _undivided(self, op: Any, count: int, inputs: Any, attrs: Any, ctx: Any, name: Any) -> Any:
        """Run an operation on replicated inputs, in a thread that must not wait for other ranks."""
        whole = [self._converter.whole(t) if _is_eager(t) else t for t in inputs]
        return self._original(op, count, whole, attrs, ctx, name)

    def _pays(self, tensor: Tensor) -> bool:
        """Return whether a replicated tensor has rows to divide."""
        return type(tensor) is EagerTensor and pays(local_shape_of(tensor), self.size)

    def _placed(self, op: str, count: int, inputs: Sequence[Tensor], attrs: Any, ctx: Any, name: Any) -> Any:
        entry = self._planned(op, inputs, attrs, ctx)
        if entry.constants is not None:
            return [constant_op.constant(value) for value in entry.constants]
        found = entry.plan
        args = self._inputs(op, inputs, entry)
        attrs = _with(attrs, found.attrs) if found.attrs else attrs
        try:
            outputs = self._original(found.op or op, count, args, attrs, ctx, name)
        except tf.errors.OpError:
            self._converter.exchange.failed(f"{op} at {where()}")
            raise
        if not outputs:
            return outputs
        return [self._output(op, t, i, entry) for i, t in enumerate(outputs)]

    def _inputs(self, op: str, inputs: Sequence[Tensor], entry: "_Cached") -> list[Tensor]:
        if not entry.moves and not entry.plan.values:
            return list(inputs)
        gathered = [inputs[i] for i, _ in entry.moves if inputs[i]._placement is not None]
        if gathered:
            self._report.gathered(op, gathered)
            self._converter.all_whole(gathered, op)
        args = list(inputs)
        for index, target in entry.moves:
            args[index] = self._converter.converted(inputs[index], target)
        for index, values in entry.plan.values.items():
            args[index] = constant_op.constant(values[self.rank])
        return args

    def _output(self, op: str, local: Tensor, index: int, entry: "_Cached") -> Tensor:
        scale = entry.plan.scale
        if scale is not None:
            local = local * constant_op.constant(scale, local.dtype)
        shape = local_shape_of(local)
        spec = entry.specs.get((index, shape), _UNKNOWN)
        if spec is _UNKNOWN:
            spec = entry.specs[index, shape] = self._spec(op, local, entry.plan.output(index))
        return local if spec is None else marked(local, spec)

    def _spec(self, op: str, local: Tensor, placement: Placement) -> PlacedSpec | None:
        """Return the description of an output, or None for a replicated one."""
        if placement is REPLICATE:
            return None
        whole = global_shape(local_shape_of(local), placement)
        if isinstance(placement, Shard):
            check(local, placement, whole, self.rank, op)
        return spec_of(placement, whole, local._datatype_enum())

    # -- cached plans ----------------------------------------------------------------------------------------------
    def _planned(self, op: str, inputs: Sequence[Tensor], attrs: Any, ctx: Any) -> "_Cached":
        key = op, attrs, tuple(map(described, inputs))
        try:
            learnt = self._plans.get(key)
        except TypeError:  # a list among the attributes
            key = op, str(attrs), key[2]
            learnt = self._plans.get(key)
        if learnt is None:
            if ctx.has_function(op):
                raise PlacementError(
                    f"the function {op} was called with a rank's local tensors without their placements"
                )
            learnt = self._plans[key] = _Learnt()
        values = tuple(value_bytes(inputs[i]) for i in learnt.used) if learnt.used else ()
        return learnt.entries.get(values) or self._plan(learnt, op, inputs, attrs)

    def _plan(self, learnt: "_Learnt", op: str, inputs: Sequence[Tensor], attrs: Any) -> "_Cached":
        used = set(learnt.used)
        args = tuple(self._arg(op, i, t, used) for i, t in enumerate(inputs))
        call = OpCall(op, dict(zip(attrs[::2], attrs[1::2], strict=True)) if attrs else {}, args, self.size)
        cached = _Cached(plan(call), known_outputs(call), inputs)
        learnt.remember(tuple(sorted(used)), inputs, cached)
        return cached

    def _arg(self, op: str, index: int, tensor: Tensor, used: set[int]) -> Arg:
        if not _is_eager(tensor):
            return Arg(REPLICATE, None)
        placement = tensor._placement or REPLICATE
        shape = tensor._shape_tuple()
        if index == 0 and op in PAYING and placement is REPLICATE and self._pays(tensor):
            placement = Shard(0, divided(shape[0], self.size))

        def known() -> Array | None:
            if tensor._placement is not None or int(np.prod(shape)) > _KNOWN_ELEMENTS:
                return None
            used.add(index)
            return np.asarray(local_array(tensor))

        return Arg(placement, shape, tensor.dtype.name, known)


class _Cached:
    """A plan, or the constants that the operation returns. `moves`: inputs to convert, with their target placements."""

    def __init__(self, found: Plan, constants: list[Array] | None, inputs: Sequence[Tensor]) -> None:
        self.plan, self.constants = found, constants
        self.specs: dict[tuple[int, Any], PlacedSpec | None] = {}  # (output, its local shape) -> its description
        pairs = enumerate(zip(inputs, found.inputs, strict=True))
        self.moves = [(i, p) for i, (t, p) in pairs if _is_eager(t) and placement_of(t) != p]


class _Learnt:
    """The plans of one operation on inputs of one kind, by the values that the rule read."""

    def __init__(self) -> None:
        self.used: tuple[int, ...] = ()
        self.entries: dict[tuple[bytes, ...], _Cached] = {}

    def remember(self, used: tuple[int, ...], inputs: Sequence[Tensor], cached: _Cached) -> None:
        """Keep a plan for which the rule read the values of the inputs `used`."""
        if used != self.used or len(self.entries) >= _PLANS_KEPT:
            self.used, self.entries = used, {}
        self.entries[tuple(value_bytes(inputs[i]) for i in used)] = cached


def _is_eager(tensor: Any) -> bool:
    return type(tensor) is EagerTensor


def _with(attrs: Any, changed: Any) -> tuple[Any, ...]:
    merged = {**dict(zip(attrs[::2], attrs[1::2], strict=True)), **changed}
    return tuple(part for pair in merged.items() for part in pair)


def _in_python(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a Python function of a TensorFlow operation undivided: TensorFlow reads its results in C++."""
    with undivided():
        return original(*args, **kwargs)


def _shape_slice(original: Any, tensors: Sequence[Tensor], dimension: int) -> Tensor:
    """Return the sizes of one dimension, which TensorFlow reads in C++, of the global tensors."""
    if any(t._placement is not None for t in tensors):
        return constant_op.constant([t._shape_tuple()[dimension] for t in tensors], tf.int32)
    return original(tensors, dimension)
