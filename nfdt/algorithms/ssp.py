"""SSP: asynchronous SGD in which no worker runs more than `bound` steps ahead of the slowest.

Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013, section 2. The
clock c_m of worker m counts its pushes; `bound` is the paper's s:

    a pull of worker m waits until  c_m - min_j c_j <= s
    w <- w - eta g(w_m),  c_m <- c_m + 1                   when its gradient of the weights w_m that it pulled arrives

Deviation: a pull returns all updates so far, not only those that the bound guarantees.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State, require
from nfdt.tree import Tree


@dataclass(frozen=True)
class Clocks:
    """State of the algorithm: the clock of each worker."""

    of: Mapping[int, int]  # by worker: number of pushes


def rule(bound: int = 3) -> AsyncAlgorithm:
    """Return SSP.

    Args:
        bound: Number of steps that a worker may be ahead of the slowest, >= 0; 0: all workers wait after each step.

    Raises:
        ValueError: If `bound` is negative.
    """
    require(bound >= 0, "ssp", "bound must be >= 0", bound=bound)

    def init(params: Tree, workers: int) -> tuple[Clocks, State]:
        return Clocks(dict.fromkeys(range(workers), 0)), None

    def pull(clocks: Clocks, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Clocks, State]:
        ahead = clocks.of[hyper.worker] - min(clocks.of.values())
        return (None if ahead > bound else params), clocks, mine

    def push(clocks: Clocks, mine: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Clocks, State]:
        return AlgorithmUpdate(push.gradient), Clocks({**clocks.of, push.worker: clocks.of[push.worker] + 1}), mine

    def leave(clocks: Clocks, mine: State, worker: int) -> Clocks:
        return Clocks({other: clock for other, clock in clocks.of.items() if other != worker})

    def join(clocks: Clocks, worker: int) -> Clocks:
        return Clocks({**clocks.of, worker: min(clocks.of.values(), default=0)})

    def flush(clocks: Clocks, params: Tree) -> tuple[AlgorithmUpdate | None, Clocks]:
        return None, Clocks(dict.fromkeys(clocks.of, 0))  # the slowest has no batch left: no worker waits for it

    return AsyncAlgorithm(init, pull, push, leave, join, flush, waits=True)
