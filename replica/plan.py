"""The rule table: for an operation and its inputs' placements, the outputs' placements and the conversions needed.

A rule is a pure function from a Call to a Plan; it needs no TensorFlow. An operation without a rule, and a call for
which its rule returns None, gets its inputs replicated: always right, only slower.
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
        placement: Of the tensor at hand.
        shape: Of the global tensor, or of a list's elements; None for an unknown rank, None entries for unknown
            dimensions.
        dtype: TensorFlow's name of it.
        known: Returns the global value where it is known before the operation runs, else None.
    """

    placement: Placement
    shape: Shape | None
    dtype: str = "float32"
    known: Callable[[], Array | None] = lambda: None

    @property
    def value(self) -> Array | None:
        """Return the global value, where it is known before the operation runs."""
        return self.known() if isinstance(self.placement, Replicate) else None

    @property
    def rank(self) -> int:
        """Return the number of dimensions, which must be known."""
        assert self.shape is not None
        return len(self.shape)

    @property
    def elements(self) -> int:
        """Return the number of elements; unknown dimensions count as one."""
        return int(np.prod([1 if n is None else n for n in self.shape or ()]))


@dataclass(frozen=True)
class OpCall:
    """An operation that is to be placed.

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
        """Return the known value of an input."""
        return self.args[index].value

    def integers(self, index: int) -> list[int] | None:
        """Return the known value of an integer input as a flat list."""
        value = self.args[index].value
        return None if value is None else [int(n) for n in np.ravel(value)]


@dataclass(frozen=True)
class Plan:
    """How each rank runs an operation.

    Attributes:
        inputs: The placement each input is converted to first.
        outputs: The placement of each output; one placement stands for all of them.
        values: Inputs that are replaced: by index, one array per rank.
        attrs: Attributes that are replaced: by integers, functions, or lists of functions or shapes.
        op: The operation that runs in place of the call's, if it is another.
        scale: The outputs are multiplied by it afterwards.
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


# Operations whose first input, where it is whole and has rows enough, is divided for their sake.
PAYING = frozenset(("MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D", "Conv3D", "DepthwiseConv2dNative"))
# Operations whose rules hold for lists, too. Of other rules, no shape is that of a list's elements.
_OF_LISTS = frozenset(("AddN", "Identity", "IdentityN", "StopGradient", "ZerosLike"))
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


def plan(call: OpCall) -> Plan:
    """Return how the ranks run `call`: without a rule for it, and on strings, which no collective moves, replicated."""
    found = RULES.get(call.op)
    known = all(arg.shape is not None or arg.dtype in ("resource", "variant") for arg in call.args)
    numbers = all(arg.dtype != "string" and (arg.dtype != "variant" or of_lists(call.op)) for arg in call.args)
    chosen = found(call) if found is not None and known and numbers and any_placed(call.args) else None
    return chosen or replicated(call)


def of_lists(op: str) -> bool:
    """Tell whether an operation may take lists or Optionals of which a rank has its part."""
    return of_lists_alone(op) or op in _OF_LISTS


def of_lists_alone(op: str) -> bool:
    """Tell whether an operation makes lists or Optionals, or takes them apart."""
    return op.startswith(("TensorList", "EmptyTensorList", "Optional"))


def replicated(call: OpCall) -> Plan:
    """Return the plan that is right for every operation."""
    return Plan((REPLICATE,) * len(call.args), (REPLICATE,))


def any_placed(args: Sequence[Arg]) -> bool:
    """Tell whether some input is not replicated."""
    return any(not isinstance(arg.placement, Replicate) for arg in args)


def any_partial(args: Sequence[Arg]) -> bool:
    """Tell whether some input is Partial."""
    return any(isinstance(arg.placement, Partial) for arg in args)


def widest(args: Sequence[Arg]) -> int | None:
    """Return the index of the largest divided input, the one that is the dearest to gather."""
    shards = [i for i, arg in enumerate(args) if isinstance(arg.placement, Shard)]
    return max(shards, key=lambda i: (args[i].elements, -i)) if shards else None


def per_rank(shape: Sequence[int], axis: int, sizes: Sequence[int], like: Array) -> tuple[Array, ...]:
    """Return the shape `shape`, as a tensor like `like`, with each rank's size of `axis`."""
    return tuple(np.asarray([*shape[:axis], n, *shape[axis + 1 :]], like.dtype) for n in sizes)
