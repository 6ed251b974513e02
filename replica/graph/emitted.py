"""What an emitted function takes, holds and gives."""

from dataclasses import dataclass, field
from typing import Any

from replica.placement import Placement
from replica.plan import Array, Shape


@dataclass(frozen=True)
class Argument:
    """What a function is called with. `shape`: the global one."""

    placement: Placement
    shape: Shape | None
    dtype: Any


@dataclass
class Value:
    """A tensor of the emitted graph. `data`: it depends on more than variables."""

    tensor: Any
    placement: Placement
    shape: Shape | None
    data: bool
    whole: Any = None


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
