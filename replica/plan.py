"""The rule table: for an operation and its inputs' placements, the outputs' placements and the conversions needed.

A rule is a pure function from an OpCall to a Plan; it needs no TensorFlow. Inputs are replicated for an operation
without a rule, and for a call for which the rule returns None: always right, only slower.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from replica.placement import REPLICATE, Partial, Placement, Replicate, Shard

Array = npt.NDArray[Any]
Shape = tuple[int | None, ...]
_DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    9: "int64",
    14: "bfloat16",
    19: "float16",
    22: "uint32",
    23: "uint64",
}  # as in types.proto


@dataclass(frozen=True)
class Arg:
    """An input of an operation.

    Attributes:
        placement: The placement of the tensor.
        shape: The shape of the global tensor, or of a list's elements; None for an unknown rank, None entries for
            unknown dimensions.
        dtype: TensorFlow's name of the dtype.
        known: Returns the global value where it is known before the operation runs, else None.
    """

    placement: Placement
    shape: Shape | None
    dtype: str = "float32"
    known: Callable[[], Array | None] = lambda: None

    @property
    def value(self) -> Array | None:
        """The global value, where it is known before the operation runs, else None."""
        return self.known() if isinstance(self.placement, Replicate) else None

    @property
    def rank(self) -> int:
        """The number of dimensions, which must be known."""
        assert self.shape is not None
        return len(self.shape)

    @property
    def elements(self) -> int:
        """The number of elements; unknown dimensions count as one."""
        return int(np.prod([1 if n is None else n for n in self.shape or ()]))


@dataclass(frozen=True)
class OpCall:
    """An operation with its inputs, for which a plan is made.

    Attributes:
        op: Its type.
        attrs: Its attributes.
        args: Its inputs.
        size: The number of ranks.
        within: It is in a loop or a branch, where no collective is possible.
    """

    op: str
    attrs: Mapping[str, Any]
    args: tuple[Arg, ...]
    size: int
    within: bool = False

    def text(self, name: str, default: str = "") -> str:
        """Return an attribute that is a string."""
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def dtype(self, name: str) -> str:
        """Return TensorFlow's name of an attribute that is a dtype: a number in eager code, a DType in a graph."""
        value = self.attrs.get(name)
        return _DTYPES.get(value, "") if isinstance(value, int) else str(getattr(value, "name", value))

    def value(self, index: int) -> Array | None:
        """Return the value of an input, where it is known."""
        return self.args[index].value

    def integers(self, index: int) -> list[int] | None:
        """Return the value of an integer input as a flat list, where it is known."""
        value = self.args[index].value
        return None if value is None else [int(n) for n in np.ravel(value)]


@dataclass(frozen=True)
class Plan:
    """The way in which each rank runs an operation.

    Attributes:
        inputs: The placement to which each input is converted first.
        outputs: The placement of each output; one placement stands for all of them.
        values: Replaced inputs: index -> one array per rank.
        attrs: Replaced attributes: integers, functions, or lists of functions or shapes.
        op: The operation that runs instead of the call's, if it is another.
        scale: A factor of the outputs.
    """

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]
    values: Mapping[int, tuple[Array, ...]] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    op: str | None = None
    scale: float | None = None

    def output(self, index: int) -> Placement:
        """Return the placement of one output."""
        return self.outputs[index] if len(self.outputs) > 1 else self.outputs[0]


# Operations worth dividing: their first input is divided where it is replicated and `pays`.
PAYING = frozenset(("MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D", "Conv3D", "DepthwiseConv2dNative"))
# Operations whose rules also hold for lists. Other rules must not take the shape of a list's elements.
_OF_LISTS = frozenset(("AddN", "Identity", "IdentityN", "StopGradient", "ZerosLike"))
_MAKING_TEXTS = frozenset(("AsString",))  # of inputs that are none
Rule = Callable[[OpCall], Plan | None]
RULES: dict[str, Rule] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of these operation types."""

    def register(function: Rule) -> Rule:
        for op in ops:
            assert op not in RULES, op
            RULES[op] = function
        return function

    return register


def plan(call: OpCall, *, texts: bool = False) -> Plan:
    """Return how the ranks run `call`. Without a rule it is replicated.

    Args:
        call: The call.
        texts: Divide strings, too, which no collective sends.
    """
    found = RULES.get(call.op) if texts or call.op not in _MAKING_TEXTS else None
    known = all(arg.shape is not None or arg.dtype in ("resource", "variant") for arg in call.args)
    whole = {"string": not texts, "variant": not of_lists(call.op)}  # dtypes
    divides = not any(whole.get(arg.dtype) for arg in call.args)
    chosen = found(call) if found is not None and known and divides and any_placed(call.args) else None
    return chosen or replicated(call)


def of_lists(op: str) -> bool:
    """Return whether an operation may take lists or Optionals of which a rank has its part."""
    return of_lists_alone(op) or op in _OF_LISTS


def of_lists_alone(op: str) -> bool:
    """Return whether an operation makes lists or Optionals, or reads their elements."""
    return op.startswith(("TensorList", "EmptyTensorList", "Optional"))


def pays(shape: Shape, size: int) -> bool:
    """Return whether a replicated tensor of this shape has rows to divide over `size` ranks."""
    return len(shape) > 1 and (shape[0] or 0) >= max(2, size) and size > 1


def replicated(call: OpCall) -> Plan:
    """Return the plan that is right for every operation."""
    return Plan((REPLICATE,) * len(call.args), (REPLICATE,))


def keeping(call: OpCall, output: Placement | None = None) -> Plan:
    """Return the plan that keeps the first input's placement and replicates the others. `output`: None is the same."""
    first = call.args[0].placement
    return Plan((first, *(REPLICATE for _ in call.args[1:])), (first if output is None else output,))


def any_placed(args: Sequence[Arg]) -> bool:
    """Return whether some input is not replicated."""
    return any(not isinstance(arg.placement, Replicate) for arg in args)


def any_partial(args: Sequence[Arg]) -> bool:
    """Return whether some input is Partial."""
    return any(isinstance(arg.placement, Partial) for arg in args)


def widest(args: Sequence[Arg]) -> int | None:
    """Return the index of the largest divided input, which is the most expensive one to gather."""
    shards = [i for i, arg in enumerate(args) if isinstance(arg.placement, Shard)]
    return max(shards, key=lambda i: (args[i].elements, -i)) if shards else None


def per_rank(shape: Sequence[int], axis: int, sizes: Sequence[int], like: Array) -> tuple[Array, ...]:
    """Return `shape` as tensors of the dtype of `like`, one for each rank, with the rank's size of `axis`."""
    return tuple(np.asarray([*shape[:axis], n, *shape[axis + 1 :]], like.dtype) for n in sizes)
