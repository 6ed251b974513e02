"""A traced function computed in float64, where rounding errors vanish and the meaning of a step remains.

Its definition is rewritten, not traced again: each float32, float16 and bfloat16 becomes float64, and complex64
complex128. Operations that have no such kernel, that read or write variables, or that call Python keep their types
between casts. Random numbers become constants, so that a row gives the same result in any batch. Print operations are
removed.
"""

import contextlib
import itertools
import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from fdt.compat.tensorflow import cancellation, context, execute, types_pb2
from fdt.ops import PYTHON
from fdt.typing import Tensor
from hfdt.exactness.float64_types import (
    NARROW,
    WIDE,
    OperationTypes,
    keeps_types,
    slots,
    types_of,
    wide,
    widen_attributes,
)

_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd"}  # exact
_ALONE = "_alone"  # ends the name of a function without sums over ranks
SUM_SCOPE = "hfdt_sum"  # name scope of the operations that sum over ranks
_numbers = itertools.count()
# Dropout keeps an element where the draw is at least the rate, stochastic depth where draw + rate is 1 or more.
_UNIFORM, _NORMAL = 0.9995, 0.7
_DRAWS = {
    "RandomUniform": _UNIFORM,
    "StatelessRandomUniform": _UNIFORM,
    "StatelessRandomUniformV2": _UNIFORM,
    "RandomStandardNormal": _NORMAL,
    "StatelessRandomNormal": _NORMAL,
    "StatelessRandomNormalV2": _NORMAL,
    "TruncatedNormal": _NORMAL,
    "StatelessTruncatedNormal": _NORMAL,
    "StatelessTruncatedNormalV2": _NORMAL,
}


class InFloat64:
    """A traced function (a ConcreteFunction that returns a list), computed in float64.

    Attributes:
        rounded: The types of operations whose outputs are still rounded to fewer bits. Reads of variables are exact.
    """

    def __init__(self, traced: Any) -> None:
        self._traced, self._outputs = traced, len(traced.outputs)  # it keeps the Python functions that it calls
        self.rounded: set[str] = set()
        self._name, suffix = tf.compat.as_str(traced.name), f"_in_float64_{next(_numbers)}"
        self._bodies: dict[str, _Body] = {}
        waiting = [self._name]
        while waiting:
            name = waiting.pop()
            if name not in self._bodies:
                definition = context.context().get_function_def(name)
                self._bodies[name] = _Body(definition, suffix, self.rounded)
                waiting += self._bodies[name].called
        self._name += suffix
        self._added = [_added(body.definition) for body in self._bodies.values()]
        weakref.finalize(self, _remove, self._added).atexit = False

    def sliced(self, *inputs: Tensor) -> list[Tensor]:
        """Call the function.

        Args:
            inputs: The inputs, with composite tensors expanded, in their original dtypes.

        Returns:
            The outputs, floating-point ones as float64.
        """
        return self._call(self._name, inputs)

    def alone(self, *inputs: Tensor) -> list[Tensor]:
        """Call the function without its sums over ranks, as in a run of one rank."""
        if self._bodies:
            self._added += [_added(body.alone()) for body in self._bodies.values()]
            self._bodies = {}
        return self._call(self._name + _ALONE, inputs)

    def check(self, *inputs: Tensor) -> None:
        """Raise ValueError or OpError where TensorFlow cannot build the rewritten function.

        The call is cancelled before it begins, so TensorFlow builds the function and runs nothing.
        """
        cancelled = cancellation.CancellationManager()
        cancelled.start_cancel()
        attributes = tuple(itertools.chain(*context.context().function_call_options.as_attrs().items()))
        with contextlib.suppress(tf.errors.CancelledError):
            execute.execute_with_cancellation(
                self._name, self._outputs, self._given(inputs), attributes, context.context(), cancelled
            )

    def _call(self, name: str, inputs: Iterable[Tensor]) -> list[Tensor]:
        return context.context().call_function(name.encode(), self._given(inputs), self._outputs) or []

    def _given(self, inputs: Iterable[Tensor]) -> list[Tensor]:
        return [_widened(t) for t in (*inputs, *self._traced.captured_inputs)]


def _added(definition: Any) -> str:
    context.context().add_function_def(definition)
    return str(definition.signature.name)


def _remove(names: list[str]) -> None:
    for name in names:
        context.context().remove_function(name)


def _widened(tensor: Any) -> Tensor:
    tensor = tf.convert_to_tensor(tensor)
    return tf.cast(tensor, wide(tensor.dtype.as_datatype_enum))


class _Body:
    """The definition of one function, rewritten in place.

    Attributes:
        definition: A FunctionDef.
        called: The names of the functions that it calls, before their own rewriting.
    """

    def __init__(self, definition: Any, suffix: str, rounded: set[str]) -> None:
        self.definition, self.called = definition, set[str]()
        self._suffix, self._rounded = suffix, rounded
        self._added: list[Any] = []
        self._renamed: dict[str, str] = {}  # name of a tensor that keeps its type -> name of its cast
        self._sums: list[int] = []  # positions of nodes that sum over ranks, and of nodes that call functions
        self._calls: list[int] = []
        definition.signature.name += suffix
        for arg in [*definition.signature.input_arg, *definition.signature.output_arg]:
            arg.type = wide(arg.type)
        for name in [name for name in definition.attr if name.startswith("api_")]:
            del definition.attr[name]  # such attributes let TensorFlow substitute another implementation
        for position, node in enumerate(definition.node_def):
            self._rewrite(position, node)
        _rename(definition, self._renamed)
        definition.node_def.extend(self._added)  # after the renaming: a cast's input is the tensor before it

    def alone(self) -> Any:
        """Return the definition without sums over ranks."""
        found = type(self.definition)()
        found.CopyFrom(self.definition)
        found.signature.name += _ALONE
        renamed: dict[str, str] = {}
        for position in self._sums:
            renamed.update(_pass_on(found.node_def[position]))
        for position in self._calls:
            _rename_called(found.node_def[position], _ALONE)
        if renamed:
            _rename(found, renamed)
        return found

    def _rewrite(self, position: int, node: Any) -> None:
        if node.op in _DRAWS and node.attr["dtype"].type in (*NARROW, WIDE):
            self._still(node)
            return
        kind = types_of(node.op)
        if node.op in ("PrintV2", "Print") and not kind.outputs:
            node.op = "NoOp"
            node.input[:] = [name if name.startswith("^") else f"^{name.split(':')[0]}" for name in node.input]
            node.attr.clear()
            return
        sums = (node.op in PYTHON or node.op.startswith("Horovod")) and SUM_SCOPE in node.name
        same = kind.known and not sums and keeps_types(node, kind)
        if same or kind.fixed:
            self._cast(node, kind, same)
        if sums:
            self._sums.append(position)
        if widen_attributes(node, same) or not kind.known:
            self._calls.append(position)
            self.called.update(_rename_called(node, self._suffix))

    def _still(self, node: Any) -> None:
        """Replace each draw by a constant."""
        value = self._add(node.name + "/drawn", "Const")
        value.attr["dtype"].type = WIDE
        value.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(_DRAWS[node.op], tf.float64))
        size = node.attr["T"].type if "T" in node.attr else node.attr["Tshape"].type
        node.input[:] = [node.input[0], f"{value.name}:output:0"]
        node.op = "Fill"
        node.attr.clear()
        node.attr["T"].type, node.attr["index_type"].type = WIDE, size or types_pb2.DT_INT32

    def _cast(self, node: Any, kind: OperationTypes, same: bool) -> None:
        """Add casts around the inputs and outputs of `node` that keep a narrow type."""
        for i, (_, dtype, fixed) in enumerate(slots(kind.inputs, node)):
            if dtype in NARROW and (same or fixed):
                cast = self._add(f"{node.name}/narrow_{i}", "Cast")
                cast.attr["SrcT"].type, cast.attr["DstT"].type = NARROW[dtype], dtype
                cast.input.append(node.input[i])
                node.input[i] = f"{cast.name}:y:0"
        for i, (where, dtype, fixed) in enumerate(slots(kind.outputs, node)):
            if dtype in NARROW and (same or fixed):
                self._rounded.update({node.op} - _READS)
                cast = self._add(f"{node.name}/wide_{i}", "Cast")
                cast.attr["SrcT"].type, cast.attr["DstT"].type = dtype, NARROW[dtype]
                cast.input.append(f"{node.name}:{where}")
                self._renamed[f"{node.name}:{where}"] = f"{cast.name}:y:0"

    def _add(self, name: str, op: str) -> Any:
        node = tf.compat.v1.NodeDef(name=name, op=op)
        self._added.append(node)
        return node


def _rename(definition: Any, renamed: dict[str, str]) -> None:
    """Give tensors other names where nodes, or the function's results, have them."""
    if not renamed:
        return
    for node in definition.node_def:
        for i, name in enumerate(node.input):
            if name in renamed:
                node.input[i] = renamed[name]
    for name, tensor in definition.ret.items():
        definition.ret[name] = renamed.get(tensor, tensor)


def _pass_on(node: Any) -> dict[str, str]:
    """Replace a sum over ranks by the identity; return the new names of its outputs."""
    places = [where for where, _, _ in slots(types_of(node.op).outputs, node)]
    types = list(node.attr["Tin"].list.type) or [node.attr["T"].type] * len(places)
    node.op = "IdentityN"
    node.attr.clear()
    node.attr["T"].list.type.extend(types)
    return {f"{node.name}:{where}": f"{node.name}:output:{i}" for i, where in enumerate(places)}


def _rename_called(node: Any, suffix: str) -> list[str]:
    """Append `suffix` to the names of functions that a node calls; return the names before."""
    values = [value for value in node.attr.values() if value.WhichOneof("value") in ("func", "list")]
    functions = [f for v in values for f in ([v.func] if v.WhichOneof("value") == "func" else v.list.func) if f.name]
    names = [str(f.name) for f in functions]
    for function in functions:
        function.name += suffix
    if not types_of(node.op).known:
        names.append(str(node.op))
        node.op += suffix
    return names
