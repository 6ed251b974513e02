"""Tracing of an algorithm's arithmetic, which is then compiled once.

An algorithm runs in plain Python on every call, with `TracedValue` objects in place of arrays. The result is a list of
operations. Equal lists share one compiled function, whatever the counts and worker numbers were. So an algorithm may
hold sets and counters, and one function still serves all workers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nfdt.tree import Tree, tree_map

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
    """Placeholder for an array while an algorithm runs. A decision that depends on it raises TypeError."""

    __slots__ = ("node", "program")
    __array_ufunc__ = None  # makes NumPy scalars defer to these operators
    shape = ()  # marks an array (nfdt/tree.py); algorithms do not read sizes

    def __init__(self, tape: TracedProgram, node: int) -> None:
        self.program, self.node = tape, node

    def record(self, name: str, *operands: Any) -> "TracedValue":
        """Append the named function (nfdt/tree.py) to the program."""
        return self.program.add(name, *operands)

    def __bool__(self) -> bool:
        raise TypeError(
            "a rule must not use arrays as conditions: use minimum and maximum of nfdt/tree.py, or Python values"
        )

    def __neg__(self) -> "TracedValue":
        return self.program.add("sub", 0.0, self)

    def __abs__(self) -> "TracedValue":
        return self.program.add("abs", self)

    __add__, __radd__ = _operator("add"), _operator("add", swapped=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swapped=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", swapped=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", swapped=True)
    __pow__, __rpow__ = _operator("pow"), _operator("pow", swapped=True)
