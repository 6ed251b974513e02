"""What an emitted function takes, holds and gives."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from replica.placement import Placement
from replica.plan import Array, Shape
from replica.tensors import PlacementError

Items = tuple[tuple[int, ...], ...]


class Undivided(PlacementError):
    """What a rank's part cannot be computed of.

    Attributes:
        arguments: Of the loop's body or the branch: those that are needed whole; empty if anything else is.
    """

    def __init__(self, reason: str, arguments: Iterable[int] = ()) -> None:
        super().__init__(reason)
        self.arguments = frozenset(arguments)


@dataclass(frozen=True)
class Argument:
    """What a function is called with. `shape`: the global one, or that of a list's elements; `items` as of a Value."""

    placement: Placement
    shape: Shape | None
    dtype: Any
    items: Items | None = None


@dataclass
class Value:
    """A tensor of the emitted graph.

    Attributes:
        tensor: What this rank holds.
        placement: Of the tensor; of a list: of its elements.
        shape: The global one; of a list: what it was made for as the global shape of its elements.
        data: It depends on more than variables.
        whole: The global tensor, once it is there.
        items: Of a list: the integers that each element of it is one of; None if they are unknown.
    """

    tensor: Any
    placement: Placement
    shape: Shape | None
    data: bool
    whole: Any = None
    items: Items | None = None


@dataclass
class Emitted:
    """The function that was emitted.

    Attributes:
        graph: Takes local tensors, and behind the arguments the elements of `sources`.
        outputs: The placement and global shape of each output.
        used: Arguments whose values went into the graph.
        divides: Some operation works on a rank's part.
        rows: Of the last tensor that was cut for an operation's sake; 0 for none.
        gathers: Operations that need Shards whole in every call: type, file and line, bytes.
        drawn: Random operations that run before the function, with their inputs; it takes their outputs behind the
            arguments.
    """

    graph: Any
    outputs: list[tuple[Placement, Shape | None]]
    used: set[int] = field(default_factory=set)
    divides: bool = False
    rows: int = 0
    gathers: list[tuple[str, str, int]] = field(default_factory=list)
    drawn: list[tuple[Any, list[Array]]] = field(default_factory=list)
