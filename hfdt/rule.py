"""What a synchronous algorithm is: a pure step over a rank's own work and what ranks say to one another.

A rule is a file of hfdt/rules/ with a function `rule(**options) -> Rule`; adding the file adds the algorithm. Its step
is traced into the training step's graph: decisions that depend on values are TensorFlow's (`tf.cond`), and every rank
must meet the same exchanges. State and parameters are flat lists of tensors.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fdt.errors import UserError

Tensor = Any
Tree = list[Tensor]


class Local(Protocol):
    """A rank's own work in one step."""

    gradient: Tree  # of the rank's slice of the batch, at the parameters of now: tensors, IndexedSlices, or None

    def update(self, gradient: Tree) -> Tree:
        """Take one step of the script's own optimizer with `gradient`; the parameters after it."""
        ...


class Group(Protocol):
    """The ranks that a rule speaks to."""

    rank: int
    size: int

    def mean(self, tensors: Sequence[Tensor]) -> Tree:
        """Mean over ranks, each weighing its share of the global batch; None stays None."""
        ...

    def bcast(self, tensors: Sequence[Tensor], root: int = 0) -> Tree: ...


@dataclass(frozen=True)
class Rule:
    """`init(params, group) -> state`; `step(state, params, local, group) -> (params, state)`.

    A step returns what `local.update` gave, or parameters of its own, which are then assigned.
    """

    init: Callable[[Tree, Group], Tree]
    step: Callable[[Tree, Tree, Local, Group], tuple[Tree, Tree]]


def names() -> list[str]:
    from hfdt import rules

    return sorted(module.name for module in pkgutil.iter_modules(rules.__path__))


def find(name: str, **options: float) -> Rule:
    """The rule of that name. Raises UserError for an unknown one."""
    if name not in names():
        raise UserError(f"--rule must be one of {', '.join(names())}. Received: {name!r}")
    made: Rule = importlib.import_module(f"hfdt.rules.{name}").rule(**options)
    return made
