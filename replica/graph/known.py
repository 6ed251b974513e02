"""Values of a function's tensors that are known before it runs: constants, shapes, integer arguments.

Operations on known shapes, permutations and sizes are computed while a function is emitted.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.compat.tensorflow import constant_op, context, execute, tensor_util
from replica.graph.emitted import Argument
from replica.graph.flatten import Flat, Ref, eager_attrs
from replica.plan import Array

_LARGEST = 4096  # elements of the largest folded value
_FOLDED = frozenset(
    "Abs Add AddV2 BroadcastArgs BroadcastGradientArgs BroadcastTo Cast ConcatOffset ConcatV2 Const DivNoNan "
    "DynamicStitch Equal ExpandDims Fill FloorDiv FloorMod GatherV2 Greater GreaterEqual Identity "
    "InvertPermutation Less LessEqual LogicalAnd LogicalNot LogicalOr Max Maximum Min Minimum Mul Neg NotEqual "
    "OnesLike Pack Pad Prod Range RealDiv Reshape ReverseV2 Select SelectV2 Size Slice Split SplitV Squeeze "
    "StopGradient StridedSlice Sub Sum Tile Transpose Unpack ZerosLike".split()
)


class KnownValues:
    """The known values, computed when a rule reads them.

    Args:
        flat: The function.
        arguments: The arguments of the call.
        values: The arguments' values, None where they must not be used.

    Attributes:
        used: Arguments whose values were read.
    """

    def __init__(self, flat: Flat, arguments: Sequence[Argument], values: Sequence[Any]) -> None:
        self._flat, self._arguments, self._values = flat, arguments, values
        self._found: dict[Ref, Array | None] = {}
        self.used: set[int] = set()

    def found(self, ref: Ref) -> Array | None:
        """Return a value that was read or recorded before."""
        return self._found.get(ref)

    def note(self, ref: Ref, value: Array) -> None:
        """Record the value of a tensor, for instance of a shape."""
        self._found[ref] = value

    def value(self, ref: Ref) -> Array | None:
        """Return the value of a replicated tensor; None where it is known only at run time."""
        stack = [ref]
        while stack:
            last = stack[-1]
            missing = [] if last in self._found else self._unknown_inputs(last)
            if missing:
                stack.extend(missing)
                continue
            if last not in self._found:
                self._find(last)
            stack.pop()
        return self._found[ref]

    def _unknown_inputs(self, ref: Ref) -> list[Ref]:
        """Return the inputs of a folded operation that were not read before."""
        node = self._flat.nodes[ref[0]]
        if node.argument is not None or not _is_folded(node.op):
            return []
        return [each for each in node.inputs if each not in self._found]

    def _find(self, ref: Ref) -> None:
        self._found[ref] = None
        node = self._flat.nodes[ref[0]]
        if node.argument is not None:
            self._found[ref] = self._of_argument(node.argument)
        elif _is_folded(node.op):
            inputs = [value for value in map(self._found.get, node.inputs) if value is not None]
            if len(inputs) == len(node.inputs):
                for index, value in enumerate(_folded(node.op, inputs)):
                    self._found[ref[0], index] = value if value.size <= _LARGEST else None

    def _of_argument(self, index: int) -> Array | None:
        value = self._values[index]
        if value is None or not self._arguments[index].dtype.is_integer:
            return None
        self.used.add(index)
        return np.asarray(value)


def _is_folded(op: Any) -> bool:
    """Return whether an operation's outputs are known when its inputs are."""
    return op.type in _FOLDED and all((t.shape.num_elements() or 0) <= _LARGEST for t in op.outputs)


def _folded(op: Any, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of an operation of a graph, for known inputs."""
    if op.type == "Const":
        return [tensor_util.MakeNdarray(op.get_attr("value"))]
    with tf.init_scope():
        tensors = [constant_op.constant(value) for value in inputs]
        found = execute.execute(op.type, len(op.outputs), tensors, eager_attrs(op), context.context())
    return [np.asarray(each) for each in found]
