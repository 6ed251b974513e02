"""What a synchronous algorithm is: pure steps over a rank's own work and what ranks say to one another.

A rule is a file of hfdt/algorithms/ with a function `rule(**options)`; adding the file adds the algorithm. It returns
one
of the kinds below, which differ in what passes between ranks and when:

    StepAlgorithm    gradients, in every batch; its step is traced into the training step's graph, so decisions that
    depend
                on values are TensorFlow's (`tf.cond`), and every rank must meet the same exchanges
    BlockAlgorithm   gradients of blocks of every batch, some of them worked on by several ranks; nothing of it is
    traced
    RoundAlgorithm   parameters, now and then: ranks train on their own in between, and nothing of a round's beginning
    or
                end is traced

State and parameters are flat lists of tensors; arithmetic is operators, so a rule runs on NumPy arrays too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Tensor = Any
Tree = list[Tensor]


class ReduceGroup(Protocol):
    """The ranks that a rule speaks to."""

    rank: int
    size: int

    def mean(self, tensors: Sequence[Tensor]) -> Tree:
        """Mean over ranks, each weighing its share of the samples: of the batch, or of the round. None stays None."""
        ...


class SyncAlgorithm:
    """An algorithm of any kind."""


# -- gradients in every batch ------------------------------------------------------------------------------------------
class Local(Protocol):
    """A rank's own work in one step."""

    gradient: Tree  # of the rank's slice of the batch, at the parameters of now: tensors, IndexedSlices, or None

    def update(self, gradient: Tree) -> Tree:
        """Take one step of the script's own optimizer with `gradient`; the parameters after it."""
        ...


@dataclass(frozen=True)
class StepAlgorithm(SyncAlgorithm):
    """`init(params, group) -> state`; `step(state, params, local, group) -> (params, state)`.

    A step returns what `local.update` gave, or parameters of its own, which are then assigned.
    """

    init: Callable[[Tree, ReduceGroup], Tree]
    step: Callable[[Tree, Tree, Local, ReduceGroup], tuple[Tree, Tree]]


# -- blocks of every batch ---------------------------------------------------------------------------------------------
class Multicast(Protocol):
    """Ranks that send to many at once."""

    rank: int
    size: int

    def multicast(self, packet: Any, root: int, members: tuple[int, ...]) -> Any:
        """Rank `root`'s `packet`, a NumPy vector, at every one of `members`, who all call this in one order.

        What others than the root give is a vector of the same kind, and stays as it is.
        """
        ...


@dataclass(frozen=True)
class BlockPlan:
    """Who works on what, for a number of ranks. `owners`: of each block, the ranks that compute its gradient.

    total(own, air): the sum of all blocks' vectors; own: block -> vector of this rank's blocks.
    sent_words(words): that a rank sends for vectors of that length.
    needs_same_bits: ranks rely on another's copy of a block being as their own, to the bit.
    """

    owners: list[tuple[int, ...]]
    total: Callable[[Mapping[int, Any], Multicast], Any]
    sent_words: Callable[[int], int]
    needs_same_bits: bool = False


@dataclass(frozen=True)
class BlockAlgorithm(SyncAlgorithm):
    """`plan(ranks, redundancy)` raises ValueError where there is none. `redundancy` None: the fastest, measured.

    speeds: of the ranks, beside one another; blocks are sized so that all are done at once. None: measured; (): equal
    blocks.
    """

    plan: Callable[[int, int], BlockPlan]
    redundancy: int | None = None
    speeds: tuple[float, ...] | None = ()


# -- parameters once a round -------------------------------------------------------------------------------------------
class LocalObjective(Protocol):
    """A rank's part of a round's data; O_i is the mean loss over it."""

    def gradient(self) -> Tree:
        """grad O_i at the parameters that the round begins with."""
        ...

    def curvature(self, direction: Tree) -> Tree:
        """The Hessian of O_i there, times `direction`. Costs one more pass over the rank's data."""
        ...


@dataclass(frozen=True)
class LocalProblem:
    """What a rank minimises instead of O_i(w): O_i(w) - linear . w + mu/2 |w - w0|^2, w0 the round's first w."""

    linear: Tree
    mu: float


@dataclass(frozen=True)
class RoundAlgorithm(SyncAlgorithm):
    """`init(params) -> state`, then in every round

        begin(state, params, shard, group) -> (Task, state)           None: each rank minimises its own loss
        each rank works on its own: `passes` times over the round's data, or exactly
        end(state, params, mine, group) -> (params, state)            params: the round's first; mine: this rank's last

    batches: of a round; 0: a round is an epoch.  solver: "optimizer" is the script's own, "cg" conjugate gradients,
    exact where the loss is a quadratic.  slots: the optimizer's own variables are averaged with the parameters.
    """

    init: Callable[[Tree], Any]
    end: Callable[[Any, Tree, Tree, ReduceGroup], tuple[Tree, Any]]
    begin: Callable[[Any, Tree, LocalObjective, ReduceGroup], tuple[LocalProblem, Any]] | None = None
    batches: int = 0
    passes: int = 1
    solver: str = "optimizer"
    slots: bool = False

    def __post_init__(self) -> None:
        if self.passes < 1:
            raise ValueError(f"local epochs must be 1 or more. Received: {self.passes}")
        if self.solver not in ("optimizer", "cg"):
            raise ValueError(f"solver must be optimizer or cg. Received: {self.solver!r}")
