"""What an asynchronous algorithm is: six pure functions, called by the server's policy in the order of events.

    init(params, workers)               -> (shared, mine)         mine: what every worker's slot starts as
    pull(shared, mine, params, hyper)   -> (tree to send | None to wait, shared, mine)
    push(shared, mine, params, push)    -> (Update | None to hold back, shared, mine)
    leave(shared, mine, worker)         -> shared                 without it the others wait for ever
    join(shared, worker)                -> shared                 one that left, or a new one, whose slot is as at init
    flush(shared, params)               -> (Update | None, shared)

`flush` is called when no worker is computing and the rule keeps those who ask waiting, or has held pushes back at an
epoch's end: apply what is held, nobody else will push. So a round that a leaver or the end of the data leaves
incomplete ends by construction.

State is any tree (nfdt/tree.py). Decisions are Python: counts and worker numbers are Python values. Arithmetic is
operators (and nfdt/tree.py's functions), so the same file runs on NumPy and is compiled in the server. `params` and
everything received are immutable snapshots.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from nfdt.tree import Array, Tree

State = Any


@dataclass(frozen=True)
class Hyper:
    """What a pull may look at. `eta`, `mu`: the captured optimizer's learning rate and momentum now, 0-d."""

    worker: int
    eta: Array
    mu: Array


@dataclass(frozen=True)
class Push:
    """One gradient as it arrives.

    gradient: list of arrays, one per trainable variable; after local steps, what these took off the weights.
    tau: updates applied since this worker's pull, 0-d.
    samples: in the batch, 0-d.
    eta, mu: the captured optimizer's learning rate and momentum now, 0-d.
    before: the weights before the latest update; equal to the weights when somebody else has written them since.
    seconds: that the worker computed for it.  batches: that it is of.  Python values: to decide by, for arithmetic that
        one of them stands in is compiled for each of its values.
    """

    worker: int
    gradient: list[Array]
    tau: Array
    samples: Array
    eta: Array
    mu: Array
    before: list[Array]
    seconds: float = 0.0
    batches: int = 1


@dataclass(frozen=True)
class Update:
    """What the captured optimizer is given, and how much of its learning rate.

    momentum: "rule": the optimizer's own is off, `gradient` is the rule's whole direction mu v + g (momentum.py).
    fresh: the g of it, of which an adaptive optimizer takes the squares; None: all of `gradient`.
    steps: given, the rule has an optimizer of its own: `gradient` is taken off the weights as it is, and the captured
        optimizer only counts so many steps.
    """

    gradient: list[Array]
    lr_scale: Array = 1.0
    momentum: Literal["captured", "rule"] = "captured"
    fresh: list[Array] | None = None
    steps: int | None = None


def nobody_waits(shared: State, mine: State, worker: int) -> State:
    return shared


def nobody_counts(shared: State, worker: int) -> State:
    return shared


def nothing_held(shared: State, params: Tree) -> tuple[Update | None, State]:
    return None, shared


@dataclass(frozen=True)
class AsyncAlgorithm:
    """An algorithm.

    waits: pulls or pushes may wait for other workers, so an overlapped step gains nothing.
    needs_sgd: its arithmetic holds only where an update is the learning rate times the direction.
    note: what is said when training starts: what an epoch, `iterations` and a schedule mean, where it is not as alone.
    local_steps: given, a worker trains with the captured optimizer on so many batches, from the weights that it pulled,
        and pushes what that took off them (nfdt/worker/local_steps.py); its Updates have `steps`.
    """

    init: Callable[[Tree, int], tuple[State, State]]
    pull: Callable[[State, State, Tree, Hyper], tuple[Tree | None, State, State]]
    push: Callable[[State, State, Tree, Push], tuple[Update | None, State, State]]
    leave: Callable[[State, State, int], State] = nobody_waits
    join: Callable[[State, int], State] = nobody_counts
    flush: Callable[[State, Tree], tuple[Update | None, State]] = nothing_held
    waits: bool = False
    needs_sgd: bool = False
    note: str = ""
    local_steps: int | None = None
