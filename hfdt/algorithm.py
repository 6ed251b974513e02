"""The interface of a synchronous algorithm: pure functions over a rank's own results and collectives between ranks.

An algorithm is a file of hfdt/algorithms/ with a function `rule(**options)`; adding the file adds the algorithm. `rule`
returns one of three kinds, which differ in what ranks exchange and when:

    StepAlgorithm    gradients, in every batch. Its step is traced into the training step's graph: decisions that depend
                     on values use `tf.cond`, and every rank must call the same collectives.
    BlockAlgorithm   gradients of blocks of every batch; several ranks may compute the same block. It is not traced.
    RoundAlgorithm   parameters, once a round: ranks train alone in between. A round's start and end are not traced.

State and parameters are flat lists of tensors. An algorithm uses arithmetic operators only, so it also runs on NumPy
arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fdt.typing import Tensor

Tree = list[Tensor]


class ReduceGroup(Protocol):
    """The ranks among which an algorithm averages tensors."""

    rank: int
    size: int

    def mean(self, tensors: Sequence[Tensor]) -> Tree:
        """Average tensors over the ranks, each rank weighted by its number of samples.

        Args:
            tensors: Tensors, IndexedSlices (inside a step only) or None. Dtypes, dense shapes and positions of None
                agree across ranks.

        Returns:
            The averages, in the same order; None stays None. The samples are those of the batch, or of the round.
        """


class SyncAlgorithm:
    """The base class of the three kinds of synchronous algorithm."""


# -- gradients in every batch ------------------------------------------------------------------------------------------
class Local(Protocol):
    """A rank's own part of one training step."""

    gradient: Tree  # of the rank's local batch at the current parameters: tensors, IndexedSlices, or None

    def update(self, gradient: Tree) -> Tree:
        """Take one step of the script's own optimizer.

        Args:
            gradient: A tensor, IndexedSlices or None for each parameter.

        Returns:
            The parameters after the step.
        """


@dataclass(frozen=True)
class StepAlgorithm(SyncAlgorithm):
    """An algorithm that exchanges gradients in every batch.

    Attributes:
        init: `init(params, group) -> state`.
        step: `step(state, params, local, group) -> (params, state)`. It returns the parameters that `local.update`
            returned, or others, which are then assigned to the variables.
    """

    init: Callable[[Tree, ReduceGroup], Tree]
    step: Callable[[Tree, Tree, Local, ReduceGroup], tuple[Tree, Tree]]


# -- blocks of every batch ---------------------------------------------------------------------------------------------
class Multicast(Protocol):
    """Ranks that can send one packet to several ranks at once."""

    rank: int
    size: int

    def multicast(self, packet: Any, root: int, members: tuple[int, ...]) -> Any:
        """Send rank `root`'s packet to every rank of `members`. All members make the same calls in the same order.

        Args:
            packet: A NumPy vector. On the other ranks it only gives length and dtype, and is not changed.
            root: The rank that sends.
            members: The ranks of the group, `root` among them.

        Returns:
            The packet of rank `root`.
        """


@dataclass(frozen=True)
class BlockPlan:
    """Which ranks compute which blocks of a batch, and how their gradients are summed.

    Attributes:
        owners: For each block, the ranks that compute its gradient.
        total: `total(own, air)` returns the sum of all blocks' vectors. `own` maps a block's number to its gradient as
            a NumPy vector, for the blocks of this rank; `air` is the transport.
        sent_words: `sent_words(words)` is the number of words that a rank sends when a gradient has `words` of them.
        needs_same_bits: The owners of a block must compute bit-identical gradients.
    """

    owners: list[tuple[int, ...]]
    total: Callable[[Mapping[int, Any], Multicast], Any]
    sent_words: Callable[[int], int]
    needs_same_bits: bool = False


@dataclass(frozen=True)
class BlockAlgorithm(SyncAlgorithm):
    """An algorithm that exchanges the gradients of blocks of every batch.

    Attributes:
        plan: `plan(ranks, redundancy)` returns the BlockPlan, or raises ValueError where there is none.
        redundancy: How many ranks compute each block; None chooses the fastest number by measurement.
        speeds: Relative speeds of the ranks, by which blocks are sized so that all ranks finish at once; None measures
            them, () makes the blocks equal.
    """

    plan: Callable[[int, int], BlockPlan]
    redundancy: int | None = None
    speeds: tuple[float, ...] | None = ()


# -- parameters once a round -------------------------------------------------------------------------------------------
class LocalObjective(Protocol):
    """A rank's part of a round's data; O_i is the mean loss over it."""

    def gradient(self) -> Tree:
        """Return grad O_i at the parameters at which the round begins, one tensor for each parameter."""

    def curvature(self, direction: Tree) -> Tree:
        """Return the product of O_i's Hessian at those parameters and `direction`.

        It costs one more pass over the rank's data.

        Args:
            direction: One tensor for each parameter, of its shape.
        """


@dataclass(frozen=True)
class LocalProblem:
    """The function that a rank minimises in a round: O_i(w) - linear . w + mu/2 |w - w0|^2, w0 the round's first w."""

    linear: Tree
    mu: float


@dataclass(frozen=True)
class RoundAlgorithm(SyncAlgorithm):
    """An algorithm whose ranks train alone and exchange parameters once a round.

    Attributes:
        init: `init(params) -> state`.
        end: `end(state, params, mine, group) -> (params, state)`, after a round. `params` are the parameters at which
            the round began, `mine` those that this rank reached.
        begin: `begin(state, params, shard, group) -> (problem, state)`, before a round. None: each rank minimises its
            own loss.
        batches: Batches of a round; 0 makes an epoch one round.
        passes: Passes over the round's data with the script's optimizer.
        solver: "optimizer" is the script's own; "cg" is conjugate gradients, exact where the loss is a quadratic.
        slots: Average the optimizer's own variables with the parameters.
        own: What each rank keeps for itself from round to round, as a user reads it. It is in no commit.
    """

    init: Callable[[Tree], Any]
    end: Callable[[Any, Tree, Tree, ReduceGroup], tuple[Tree, Any]]
    begin: Callable[[Any, Tree, LocalObjective, ReduceGroup], tuple[LocalProblem, Any]] | None = None
    batches: int = 0
    passes: int = 1
    solver: str = "optimizer"
    slots: bool = False
    own: str = ""

    def __post_init__(self) -> None:
        if self.passes < 1:
            raise ValueError(f"local epochs must be 1 or more. Received: {self.passes}")
        if self.solver not in ("optimizer", "cg"):
            raise ValueError(f"solver must be optimizer or cg. Received: {self.solver!r}")
