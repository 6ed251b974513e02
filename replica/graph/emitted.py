"""The data types of emitted functions: arguments, values and results."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from replica.placement import Placement
from replica.plan import Array, Shape
from replica.tensors import PlacementError

Items = tuple[tuple[int, ...], ...]


class Undivided(PlacementError):
    """Raised where a result cannot be computed from a rank's part.

    Attributes:
        arguments: The arguments of the loop's body or the branch that are needed whole; empty if there are other
            causes.
    """

    def __init__(self, reason: str, arguments: Iterable[int] = ()) -> None:
        super().__init__(reason)
        self.arguments = frozenset(arguments)


@dataclass(frozen=True)
class Argument:
    """An argument of a function. `shape`: the global one, or that of a list's elements; `items`: as in Value."""

    placement: Placement
    shape: Shape | None
    dtype: Any
    items: Items | None = None


@dataclass(frozen=True)
class Value:
    """A tensor of the emitted graph.

    Attributes:
        tensor: This rank's tensor.
        placement: The placement of the tensor, or of a list's elements.
        shape: The global shape; of a list, the global shape of the elements for which it was made.
        data: It depends on more than variables.
        whole: The global tensor, once it exists.
        items: Of a list: the possible integer values of each element; None if they are unknown.
    """

    tensor: Any
    placement: Placement
    shape: Shape | None
    data: bool
    whole: Any = None
    items: Items | None = None


@dataclass(frozen=True)
class Emitted:
    """An emitted function.

    Attributes:
        graph: Takes the local arguments, followed by the elements of `sources`.
        outputs: The placement and global shape of each output.
        used: Arguments whose values the graph contains.
        divides: Some operation runs on a rank's part.
        rows: Rows of the last tensor that was divided for an operation; 0 for none.
        gathers: Operations that need Shards whole in every call: type, file and line, bytes.
        drawn: Random operations that run before the function, with their inputs; their outputs follow the arguments.
    """

    graph: Any
    outputs: list[tuple[Placement, Shape | None]]
    used: set[int] = field(default_factory=set)
    divides: bool = False
    rows: int = 0
    gathers: list[tuple[str, str, int]] = field(default_factory=list)
    drawn: list[tuple[Any, list[Array]]] = field(default_factory=list)
