"""Trees of arrays, the array functions that have no operator, and the parts from which algorithms are composed.

An algorithm is written once and runs on three kinds of array: NumPy's (in tests), TensorFlow's, and the traced values
of this module (TracedValue), which the server compiles. Operators work on all three. A function of arrays without an
operator is defined here. The parts are pure functions of lists of arrays, one per trainable variable and in its shape;
a round of several workers is in nfdt/algorithms/ssgd.py.

In the server an algorithm runs in plain Python on every call, with `TracedValue` objects in place of arrays. The result
is a list of operations. Equal lists share one compiled function, whatever the counts and worker numbers were. So an
algorithm may hold sets and counters, and one function still serves all workers.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fdt.errors import UserError

Array = Any  # NumPy's, TensorFlow's or a TracedValue
Tree = Any  # lists, tuples, dicts and dataclasses of arrays; None and plain Python values are structure


def is_array(value: Any) -> bool:
    """Return whether `value` is an array of any of the three kinds."""
    return hasattr(value, "shape")


def tree_map(function: Callable[[Array], Any], tree: Tree) -> Any:
    """Apply `function` to every array of `tree`; keep every other value as it is."""
    if is_array(tree):
        return function(tree)
    if isinstance(tree, dict):
        return {key: tree_map(function, item) for key, item in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, item) for item in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(function, item) for item in tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        changed = {f.name: tree_map(function, getattr(tree, f.name)) for f in dataclasses.fields(tree)}
        return dataclasses.replace(tree, **changed)
    return tree


def leaves(tree: Tree) -> list[Array]:
    """Return the arrays of `tree`, in the order in which `tree_map` visits them."""
    found: list[Array] = []

    def note(array: Array) -> Array:
        found.append(array)
        return array

    tree_map(note, tree)
    return found


def zip_map(function: Callable[..., Array], first: list[Array], *others: list[Array]) -> list[Array]:
    """Apply `function` to the corresponding arrays of several lists of equal length."""
    return [function(*arrays) for arrays in zip(first, *others, strict=True)]


def zeros(like: list[Array]) -> list[Array]:
    """Return a list of zero arrays with the shapes and dtypes of `like`."""
    return [array * 0.0 for array in like]


def averaged(mean: list[Array], weight: Array, other: list[Array], others: Array) -> tuple[list[Array], Array]:
    """Return the weighted mean of two lists of arrays, and the sum of their weights.

    Args:
        mean: Arrays of any shape.
        weight: Weight of `mean`, 0-d.
        other: Arrays in the shapes of `mean`.
        others: Weight of `other`, 0-d.
    """
    both = weight + others
    share = others / both
    return zip_map(lambda m, o: m + (o - m) * share, mean, other), both


# -- parts of algorithms ----------------------------------------------------------------------------------------


def send_current(shared: Tree, mine: Tree, params: Tree, hyper: Any) -> tuple[Tree, Tree, Tree]:
    """Send the current weights: the `pull` of an algorithm (nfdt/algorithm.py)."""
    return params, shared, mine


def send_and_keep(shared: Tree, mine: Tree, params: Tree, hyper: Any) -> tuple[Tree, Tree, Tree]:
    """Send the current weights, and keep them as the worker's state: a `pull`."""
    return params, shared, params


def compensated(gradient: list[Array], params: list[Array], pulled: list[Array], lam: Any) -> list[Array]:
    """Return the gradient with first-order delay compensation, g + lam g*g*(w - w_m).

    Zheng et al., ICML 2017, arXiv:1609.08326, equation 10.

    Args:
        gradient: g.
        params: w, the current weights.
        pulled: w_m, the weights from which the worker computed g.
        lam: Weight of the compensation: a number, or a list of arrays.
    """
    weights = lam if isinstance(lam, list) else [lam] * len(gradient)
    return zip_map(lambda g, w, w_m, k: g + k * g * g * (w - w_m), gradient, params, pulled, weights)


def with_momentum(v: list[Array], gradient: list[Array], mu: Array) -> list[Array]:
    """Return Polyak's momentum mu v + g."""
    return zip_map(lambda v, g: mu * v + g, v, gradient)


def sum_with(total: list[Array], new: list[Array], old: list[Array]) -> list[Array]:
    """Return the sum of all workers' momenta, after one worker's changed from `old` to `new`."""
    return zip_map(lambda s, a, b: s + (a - b), total, new, old)


def sum_without(total: list[Array], gone: list[Array]) -> list[Array]:
    """Return the sum of all workers' momenta without that of a worker that leaves."""
    return zip_map(lambda s, v: s - v, total, gone)


def look_ahead(params: list[Array], momenta: list[Array], scale: Any) -> list[Array]:
    """Return the weights that are reached when every worker pushes once: w - scale sum_j v_j.

    Hakimi et al. 2019, arXiv:1907.11612, algorithm 5.

    Args:
        params: w.
        momenta: sum_j v_j.
        scale: Displacement by unit of momentum: a 0-d array, or a list of arrays.
    """
    scales = scale if isinstance(scale, list) else [scale] * len(params)
    return zip_map(lambda w, v, s: w - s * v, params, momenta, scales)


def running_square(square: list[Array], x: list[Array], keep: float) -> list[Array]:
    """Return the running mean of squares, keep s + (1 - keep) x*x."""
    return zip_map(lambda s, x: keep * s + (1.0 - keep) * x * x, square, x)


# -- array functions without an operator ------------------------------------------------------------------------


def total(array: Array) -> Array:
    """Return the sum of all elements, 0-d."""
    return _call("total", array)


def minimum(left: Array, right: Array) -> Array:
    """Return the element-wise minimum; a 0-d operand is broadcast."""
    return _call("minimum", left, right)


def maximum(left: Array, right: Array) -> Array:
    """Return the element-wise maximum; a 0-d operand is broadcast."""
    return _call("maximum", left, right)


def finite_or(array: Array, other: Array) -> Array:
    """Return `array` with the elements of `other`, of its shape, where it has NaN or infinity."""
    return _call("finite_or", array, other)


_NUMPY: dict[str, Callable[..., Array]] = {
    "total": np.sum,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "finite_or": lambda array, other: np.where(np.isfinite(array), array, other),
}


def _call(name: str, *operands: Array) -> Array:
    for operand in operands:
        record = getattr(operand, "record", None)
        if record is not None:
            return record(name, *operands)
    return _NUMPY[name](*operands)


Operation = tuple[Any, ...]  # (name, operand, ...); an operand is (True, node) or (False, number)


@dataclass
class TracedProgram:
    """A list of traced operations. Programs with equal keys share one compiled function.

    Attributes:
        inputs: The arrays of nodes 0, 1, ...
        operations: The nodes after them.
    """

    inputs: list[Any] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)

    def lift(self, tree: Tree) -> Tree:
        """Return `tree` with its arrays registered as inputs. Call it before the first operation."""
        return tree_map(self._input, tree)

    def add(self, name: str, *operands: Any) -> "TracedValue":
        """Append an operation and return its value."""
        self.operations.append((name, *(_operand(operand) for operand in operands)))
        return TracedValue(self, len(self.inputs) + len(self.operations) - 1)

    def outputs(self, tree: Tree) -> list[int]:
        """Return the nodes of `tree`'s arrays, in order."""
        nodes: list[int] = []
        tree_map(lambda leaf: nodes.append(leaf.node), tree)
        return nodes

    def gradients(self, arrays: Sequence[Any], variables: int) -> list[int]:
        """Return the nodes of an update's gradients. Raises UserError unless there is one for each variable."""
        if len(arrays) != variables:
            wanted = f"an algorithm's update must have a gradient for each of the {variables} trainable variables"
            raise UserError(f"{wanted}. Received: {len(arrays)}")
        return self.outputs(arrays)

    @property
    def key(self) -> tuple[Any, ...]:
        """The program's identity: the number of inputs and the operations."""
        return len(self.inputs), tuple(self.operations)

    def _input(self, array: Any) -> "TracedValue":
        self.inputs.append(array)
        return TracedValue(self, len(self.inputs) - 1)


def lower(tree: Tree, values: Sequence[Any]) -> Tree:
    """Return `tree` with its traced values replaced by `values`, in order."""
    remaining = iter(values)
    return tree_map(lambda _: next(remaining), tree)


def evaluate(operations: Sequence[Operation], inputs: Sequence[Any], calls: dict[str, Callable[..., Any]]) -> list[Any]:
    """Return the values of all nodes. `calls` maps each operation's name to a function."""
    nodes = list(inputs)
    for name, *operands in operations:
        nodes.append(calls[name](*(nodes[value] if is_node else value for is_node, value in operands)))
    return nodes


def _operand(value: Any) -> tuple[bool, Any]:
    return (True, value.node) if isinstance(value, TracedValue) else (False, value)


def _operator(name: str, swapped: bool = False) -> Callable[["TracedValue", Any], "TracedValue"]:
    def operator(self: "TracedValue", other: Any) -> "TracedValue":
        return self.program.add(name, other, self) if swapped else self.program.add(name, self, other)

    return operator


class TracedValue:
    """Placeholder for an array while an algorithm runs. A comparison or a decision by it raises TypeError."""

    __slots__ = ("node", "program")
    __array_ufunc__ = None  # makes NumPy scalars defer to these operators
    shape = ()  # marks an array (nfdt/tree.py); algorithms do not read sizes

    def __init__(self, tape: TracedProgram, node: int) -> None:
        self.program, self.node = tape, node

    def record(self, name: str, *operands: Any) -> "TracedValue":
        """Append the named function (nfdt/tree.py) to the program."""
        return self.program.add(name, *operands)

    def _decide(self, other: Any = None) -> bool:
        raise TypeError(
            "an algorithm must not use arrays as conditions: use minimum and maximum of nfdt/tree.py, or Python values"
        )

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _decide
    __hash__ = object.__hash__

    def __neg__(self) -> "TracedValue":
        return self.program.add("sub", 0.0, self)

    def __abs__(self) -> "TracedValue":
        return self.program.add("abs", self)

    __add__, __radd__ = _operator("add"), _operator("add", swapped=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swapped=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", swapped=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", swapped=True)
    __pow__, __rpow__ = _operator("pow"), _operator("pow", swapped=True)
