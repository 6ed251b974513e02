"""A traced function computed in float64, where rounding errors vanish and the meaning of a step remains.

The graph is rewritten, not traced again: each float32, float16 and bfloat16 becomes float64. Operations that have no
float64 kernel, that read or write variables, or that call Python keep their types between casts. Random numbers become
constants, so that a row gives the same result in any batch. Print operations are removed.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.compat.tensorflow import context, kernels, op_def_registry, types_pb2
from fdt.typing import Tensor

_NARROW = (types_pb2.DT_FLOAT, types_pb2.DT_HALF, types_pb2.DT_BFLOAT16)
_WIDE = types_pb2.DT_DOUBLE
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_AS_THEY_ARE = (*_PYTHON, "Bitcast")
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


def in_float64(traced: Any, *, alone: bool) -> tuple[Callable[..., list[Tensor]], set[str]]:
    """Convert `traced` (a ConcreteFunction that returns a list) to a function of its flat inputs, computed in float64.

    Args:
        traced: The function.
        alone: Remove sums over ranks, as in a run of one rank.

    Returns:
        A function of the inputs of `traced` with composite tensors expanded, in their original dtypes. It returns the
            outputs of `traced`, floating-point ones as float64. Second, the types of operations whose outputs are still
            rounded to fewer bits; reads of variables are exact and do not count.
    """
    graph = traced.graph.as_graph_def()
    suffix = f"_in_float64_{next(_numbers)}"
    rounded: set[str] = set()
    renamed = _Float64Rewriter(alone, suffix, rounded, functions=False).nodes(graph.node)
    for function in graph.library.function:
        _rewrite_function(function, alone, suffix, rounded)
        context.context().add_function_def(function)
    del graph.library.gradient[:]
    count = len(traced.inputs) - len(traced.captured_inputs)
    outputs = [renamed.get(_plain(t.name), t.name) for t in traced.outputs]
    names = [t.name for t in traced.inputs]

    def emit(*inputs: Tensor) -> Any:
        captured = map(tf.compat.v1.get_default_graph().capture, traced.captured_inputs)
        given = [_widened(t) for t in (*inputs, *captured)]
        return tf.graph_util.import_graph_def(graph, dict(zip(names, given, strict=True)), outputs, name="probe")

    signature = [tf.TensorSpec(t.shape, t.dtype) for t in traced.inputs[:count]]
    function = tf.function(emit, autograph=False).get_concrete_function(*signature)
    return function, rounded


def _widened(tensor: Tensor) -> Tensor:
    return tf.cast(tensor, tf.float64) if tensor.dtype.is_floating else tensor


def _rewrite_function(function: Any, alone: bool, suffix: str, rounded: set[str]) -> None:
    function.signature.name += suffix
    for arg in [*function.signature.input_arg, *function.signature.output_arg]:
        arg.type = _wide(arg.type)
    for name in [
        name for name in function.attr if name.startswith("api_")
    ]:  # such attributes let TensorFlow substitute another implementation
        del function.attr[name]
    renamed = _Float64Rewriter(alone, suffix, rounded, functions=True).nodes(function.node_def)
    for name, tensor in function.ret.items():
        function.ret[name] = renamed.get(tensor, tensor)


class _Float64Rewriter:
    """The rewriter of one graph or one function's body, in which tensors are named differently."""

    def __init__(self, alone: bool, suffix: str, rounded: set[str], *, functions: bool) -> None:
        self._alone, self._suffix, self._rounded, self._functions = alone, suffix, rounded, functions
        self._added: list[Any] = []
        self._renamed: dict[str, str] = {}  # name of a tensor that keeps its type -> name of its cast

    def nodes(self, nodes: Any) -> dict[str, str]:
        """Rewrite in place; return the new names of tensors."""
        for node in nodes:
            self._rewrite(node)
        for node in nodes:
            for i, name in enumerate(node.input):
                node.input[i] = self._renamed.get(_plain(name), name)
        nodes.extend(self._added)  # after the renaming: a cast's input is the tensor before it
        return self._renamed

    def _rewrite(self, node: Any) -> None:
        if node.op in _DRAWS and node.attr["dtype"].type in (*_NARROW, _WIDE):
            self._still(node)
            return
        if node.op in ("PrintV2", "Print") and not _outputs(node):
            node.op = "NoOp"
            node.input[:] = [name if name.startswith("^") else f"^{name.split(':')[0]}" for name in node.input]
            node.attr.clear()
            return
        sums = SUM_SCOPE in node.name and (node.op in _PYTHON or node.op.startswith("Horovod"))
        if sums and self._alone:
            _pass_on(node)
        same = _keeps_types(node) and not sums
        self._cast(node, same)
        _widen_attributes(node, same, self._suffix)

    def _still(self, node: Any) -> None:
        """Replace each draw by a constant."""
        value = self._add(node.name + "/drawn", "Const")
        value.attr["dtype"].type = _WIDE
        value.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(_DRAWS[node.op], tf.float64))
        size = node.attr["T"].type if "T" in node.attr else node.attr["Tshape"].type
        node.input[:] = [node.input[0], self._output(value.name, "output", 0)]
        node.op = "Fill"
        node.attr.clear()
        node.attr["T"].type, node.attr["index_type"].type = _WIDE, size or types_pb2.DT_INT32

    def _cast(self, node: Any, same: bool) -> None:
        """Add casts around the inputs and outputs of `node` that keep a narrow type."""
        op = op_def_registry.get(node.op)
        if op is None:  # a call of a function by name
            return
        for i, (_, dtype, fixed) in enumerate(_slots(op.input_arg, node)):
            if dtype in _NARROW and (same or fixed):
                cast = self._add(f"{node.name}/narrow_{i}", "Cast")
                cast.attr["SrcT"].type, cast.attr["DstT"].type = _WIDE, dtype
                cast.input.append(node.input[i])
                node.input[i] = self._output(cast.name, "y", 0)
        for i, (where, dtype, fixed) in enumerate(_slots(op.output_arg, node)):
            if dtype in _NARROW and (same or fixed):
                self._rounded.update({node.op} - {"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
                cast = self._add(f"{node.name}/wide_{i}", "Cast")
                cast.attr["SrcT"].type, cast.attr["DstT"].type = dtype, _WIDE
                name = f"{node.name}:{where}" if self._functions else _plain(f"{node.name}:{i}")
                cast.input.append(name)
                self._renamed[name] = self._output(cast.name, "y", 0)

    def _output(self, node: str, arg: str, index: int) -> str:
        return f"{node}:{arg}:{index}" if self._functions else node

    def _add(self, name: str, op: str) -> Any:
        node = tf.compat.v1.NodeDef(name=name, op=op)
        self._added.append(node)
        return node


def _plain(name: str) -> str:
    return name.removesuffix(":0") if name.count(":") == 1 else name


def _outputs(node: Any) -> Sequence[Any]:
    return op_def_registry.get(node.op).output_arg  # type: ignore[no-any-return]


def _pass_on(node: Any) -> None:
    """Replace a sum over ranks by the identity."""
    count = sum(not name.startswith("^") for name in node.input)
    types = list(node.attr["Tin"].list.type) or [node.attr["T"].type] * count
    node.op = "IdentityN"
    node.attr.clear()
    node.attr["T"].list.type.extend(types)


def _keeps_types(node: Any) -> bool:
    op = op_def_registry.get(node.op)
    if op is None or node.op in _AS_THEY_ARE:
        return op is not None
    if any(arg.type == types_pb2.DT_RESOURCE for arg in op.input_arg):
        return True
    return not all(_has_kernel(node.op, attr.name) for attr in op.attr if attr.type == "type" and _narrow(node, attr))


def _narrow(node: Any, attr: Any) -> bool:
    return node.attr[attr.name].type in _NARROW


@functools.cache
def _has_kernel(op: str, attr: str) -> bool:
    """Return whether `op` has a CPU kernel for float64 as `attr`."""
    allowed = [a.allowed_values.list.type for a in op_def_registry.get(op).attr if a.name == attr]
    if any(types and _WIDE not in types for types in allowed):
        return False
    found = [k for k in kernels.get_registered_kernels_for_op(op).kernel if k.device_type in ("CPU", "DEFAULT")]
    return not found or any(
        all(_WIDE in c.allowed_values.list.type for c in kernel.constraint if c.name == attr) for kernel in found
    )


def _slots(args: Iterable[Any], node: Any) -> Iterator[tuple[str, int, bool]]:
    """Yield (name in a function's body, dtype, whether the dtype is fixed) of each tensor of `args`."""
    for arg in args:
        if arg.type_list_attr:
            types = list(node.attr[arg.type_list_attr].list.type)
        else:
            count = node.attr[arg.number_attr].i if arg.number_attr else 1
            types = [node.attr[arg.type_attr].type if arg.type_attr else arg.type] * count
        for i, dtype in enumerate(types):
            yield f"{arg.name}:{i}", dtype, bool(arg.type)


def _widen_attributes(node: Any, same: bool, suffix: str) -> None:
    for name in [name for name in node.attr if name.startswith(("api_", "_Xla"))]:
        del node.attr[name]
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            value.func.name += suffix
        elif kind == "list":
            for function in value.list.func:
                function.name += suffix
            value.list.type[:] = value.list.type if same else map(_wide, value.list.type)
        elif kind == "type" and not same:
            value.type = _wide(value.type)
        elif kind == "tensor" and value.tensor.dtype in _NARROW and not same:
            value.tensor.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(value.tensor).astype(np.float64)))
    if op_def_registry.get(node.op) is None:
        node.op += suffix


def _wide(dtype: int) -> int:
    return _WIDE if dtype in _NARROW else dtype
