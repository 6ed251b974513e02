"""Values that a graph computes from known ones: shapes, permutations, sizes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import constant_op, tensor_util

from replica.plan import Array

LARGEST = 4096  # elements
_FOLDED = frozenset(
    (
        "Abs Add AddV2 BroadcastArgs BroadcastGradientArgs BroadcastTo Cast ConcatOffset ConcatV2 Const DivNoNan Equal "
        "ExpandDims Fill FloorDiv FloorMod GatherV2 Greater GreaterEqual Identity InvertPermutation Less LessEqual "
        "LogicalAnd LogicalNot LogicalOr Max Maximum Min Minimum Mul Neg NotEqual OnesLike Pack Pad Prod Range RealDiv "
        "Reshape ReverseV2 Select SelectV2 Size Slice Split SplitV Squeeze StopGradient StridedSlice Sub Sum Tile "
        "Transpose Unpack ZerosLike"
    ).split()
)


def is_folded(op: Any) -> bool:
    """Tell whether an operation's outputs are known when its inputs are."""
    return op.type in _FOLDED and all(_elements(t) <= LARGEST for t in op.outputs)


def folded(op: Any, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of an operation of a graph, for known inputs."""
    if op.type == "Const":
        return [tensor_util.MakeNdarray(op.get_attr("value"))]
    with tf.init_scope():
        found = getattr(tf.raw_ops, op.type)(**_arguments(op, inputs))
    return [np.asarray(each) for each in (found if isinstance(found, (list, tuple)) else [found])]


def _arguments(op: Any, inputs: Sequence[Array]) -> dict[str, Any]:
    """Return what the raw operation takes: tensors by name, then attributes that no input implies."""
    arguments: dict[str, Any] = {}
    used = 0
    for arg in op.op_def.input_arg:
        count = _count(op, arg)
        values = [constant_op.constant(value) for value in inputs[used : used + (1 if count is None else count)]]
        arguments[arg.name] = values if count is not None else values[0]
        used += len(values)
    inferred = {name for arg in op.op_def.input_arg for name in (arg.type_attr, arg.number_attr, arg.type_list_attr)}
    for attr in op.op_def.attr:
        if attr.name not in inferred:
            arguments[attr.name] = op.get_attr(attr.name)
    return arguments


def _count(op: Any, arg: Any) -> int | None:
    return int(op.get_attr(arg.number_attr)) if arg.number_attr else None


def _elements(tensor: Any) -> int:
    return int(tensor.shape.num_elements() or 0)
