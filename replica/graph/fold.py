"""Constant folding of shapes, permutations and sizes in a graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.compat.tensorflow import constant_op, context, execute, tensor_util
from replica.graph.flatten import eager_attrs
from replica.plan import Array

LARGEST = 4096  # elements of the largest folded value
_FOLDED = frozenset(
    (
        "Abs Add AddV2 BroadcastArgs BroadcastGradientArgs BroadcastTo Cast ConcatOffset ConcatV2 Const DivNoNan "
        "DynamicStitch Equal ExpandDims Fill FloorDiv FloorMod GatherV2 Greater GreaterEqual Identity "
        "InvertPermutation Less LessEqual LogicalAnd LogicalNot LogicalOr Max Maximum Min Minimum Mul Neg NotEqual "
        "OnesLike Pack Pad Prod Range RealDiv Reshape ReverseV2 Select SelectV2 Size Slice Split SplitV Squeeze "
        "StopGradient StridedSlice Sub Sum Tile Transpose Unpack ZerosLike"
    ).split()
)


def is_folded(op: Any) -> bool:
    """Return whether an operation's outputs are known when its inputs are."""
    return op.type in _FOLDED and all((t.shape.num_elements() or 0) <= LARGEST for t in op.outputs)


def folded(op: Any, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of an operation of a graph, for known inputs."""
    if op.type == "Const":
        return [tensor_util.MakeNdarray(op.get_attr("value"))]
    with tf.init_scope():
        tensors = [constant_op.constant(value) for value in inputs]
        found = execute.execute(op.type, len(op.outputs), tensors, eager_attrs(op), context.context())
    return [np.asarray(each) for each in found]
