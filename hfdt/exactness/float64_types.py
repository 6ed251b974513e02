"""The types, kernels and attributes of one operation, for the rewriting of a function in float64 (float64.py)."""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fdt.compat.tensorflow import kernels, op_def_registry, types_pb2
from fdt.ops import PYTHON

WIDE = types_pb2.DT_DOUBLE
NARROW: dict[int, int] = {
    **dict.fromkeys((types_pb2.DT_FLOAT, types_pb2.DT_HALF, types_pb2.DT_BFLOAT16), WIDE),
    types_pb2.DT_COMPLEX64: types_pb2.DT_COMPLEX128,
}
_AS_THEY_ARE = (*PYTHON, "Bitcast")


@dataclass(frozen=True)
class OperationTypes:
    """The types in the definition of an operation.

    `known`: the operation has a definition; a call of a function by name has none. `keeps`: its types must not be
    widened. `dtypes`: the attributes that are types. `fixed`: an input or output is narrow with any attributes.
    """

    known: bool = False
    keeps: bool = False
    dtypes: tuple[str, ...] = ()
    fixed: bool = False
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()


@functools.cache
def types_of(op: str) -> OperationTypes:
    """Return the types of an operation by its name."""
    found = op_def_registry.get(op)
    if found is None:
        return OperationTypes()
    inputs, outputs = tuple(found.input_arg), tuple(found.output_arg)
    keeps = op in _AS_THEY_ARE or any(arg.type == types_pb2.DT_RESOURCE for arg in inputs)
    dtypes = tuple(attr.name for attr in found.attr if attr.type == "type")
    fixed = any(arg.type in NARROW for arg in (*inputs, *outputs))
    return OperationTypes(True, keeps, dtypes, fixed, inputs, outputs)


def keeps_types(node: Any, kind: OperationTypes) -> bool:
    """Return whether a node cannot have wide types for its narrow ones."""
    if kind.keeps:
        return True
    types = {name: node.attr[name].type for name in kind.dtypes}
    widened = tuple((name, wide(dtype)) for name, dtype in types.items())
    return any(dtype in NARROW for dtype in types.values()) and not _has_kernel(node.op, widened)


@functools.cache
def _has_kernel(op: str, types: tuple[tuple[str, int], ...]) -> bool:
    """Return whether `op` may have these types as its attributes, and has a CPU kernel for all of them together."""

    def fits(constraints: Iterable[Any]) -> bool:
        allowed = ((dict(types).get(each.name), each.allowed_values.list.type) for each in constraints)
        return all(not listed or dtype is None or dtype in listed for dtype, listed in allowed)

    found = _cpu_kernels(op)
    return fits(op_def_registry.get(op).attr) and (not found or any(fits(kernel.constraint) for kernel in found))


@functools.cache
def _cpu_kernels(op: str) -> list[Any]:
    found = kernels.get_registered_kernels_for_op(op).kernel
    return [kernel for kernel in found if kernel.device_type in ("CPU", "DEFAULT")]


def slots(args: Iterable[Any], node: Any) -> Iterator[tuple[str, int, bool]]:
    """Yield (name in a function's body, dtype, whether the dtype is fixed) of each tensor of `args`."""
    for arg in args:
        if arg.type_list_attr:
            types = list(node.attr[arg.type_list_attr].list.type)
        else:
            count = node.attr[arg.number_attr].i if arg.number_attr else 1
            types = [node.attr[arg.type_attr].type if arg.type_attr else arg.type] * count
        for i, dtype in enumerate(types):
            yield f"{arg.name}:{i}", dtype, bool(arg.type)


def widen_attributes(node: Any, same: bool) -> bool:
    """Widen the types and constants of a node, unless it keeps the `same`; return whether it calls functions."""
    calls = False
    for name, value in list(node.attr.items()):
        kind = value.WhichOneof("value")
        if name.startswith(("api_", "_Xla")):
            del node.attr[name]
        elif kind == "func":
            calls = True
        elif kind == "list":
            calls = calls or bool(value.list.func)
            if not same and value.list.type:
                value.list.type[:] = map(wide, value.list.type)
        elif same:
            continue
        elif kind == "type" and value.type in NARROW:
            value.type = NARROW[value.type]
        elif kind == "tensor" and value.tensor.dtype in NARROW:
            dtype = tf.as_dtype(wide(value.tensor.dtype))
            value.tensor.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(value.tensor).astype(dtype.as_numpy_dtype)))
    return calls


def wide(dtype: int) -> int:
    """Return float64 for a narrow type, complex128 for complex64, another type unchanged."""
    return NARROW.get(dtype, dtype)
