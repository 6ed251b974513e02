"""A concurrency ramp: few workers compute at first, and another algorithm does the rest.

The critical batch size is near 0 when training starts and grows, and so do the gradients that an asynchronous algorithm
can have under way. With c the number of gradients under way that are allowed, c = first at the start:

    a pull waits while c workers compute;  c <- min(2 c, n) after each `pushes` gradients
"""

import dataclasses

from nfdt import algorithms
from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State, require
from nfdt.tree import Tree


@dataclasses.dataclass(frozen=True)
class Ramp:
    """State of the ramp: the workers that compute, the pushes so far, and the other algorithm's state."""

    computing: frozenset[int]
    pushes: int
    inner: State

    def without(self, worker: int) -> frozenset[int]:
        return self.computing - {worker}


def rule(first: int = 4, pushes: int = 60, algorithm: str = "ddc_asgd", micro_steps: int = 1) -> AsyncAlgorithm:
    """Return an algorithm behind a ramp.

    Args:
        first: Number of workers that compute at first.
        pushes: Number of gradients after which twice as many compute.
        algorithm: Name of an asynchronous algorithm of NFDT, with its default parameters, in which no worker waits.
        micro_steps: As in ddc_asgd.

    Raises:
        ValueError: If `first` or `pushes` is below 1.
    """
    require(first >= 1 and pushes >= 1, "concurrency_ramp", "first and pushes must be >= 1", first=first, pushes=pushes)
    inner = algorithms.make(algorithm)

    def init(params: Tree, workers: int) -> tuple[Ramp, State]:
        shared, mine = inner.init(params, workers)
        return Ramp(frozenset(), 0, shared), mine

    def pull(ramp: Ramp, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Ramp, State]:
        others = ramp.without(hyper.worker)
        if len(others) >= first * 2 ** (ramp.pushes // pushes):
            return None, dataclasses.replace(ramp, computing=others), mine
        sent, shared, mine = inner.pull(ramp.inner, mine, params, hyper)
        return sent, Ramp(others | {hyper.worker}, ramp.pushes, shared), mine

    def push(ramp: Ramp, mine: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Ramp, State]:
        update, shared, mine = inner.push(ramp.inner, mine, params, push)
        return update, Ramp(ramp.without(push.worker), ramp.pushes + 1, shared), mine

    def leave(ramp: Ramp, mine: State, worker: int) -> Ramp:
        return Ramp(ramp.without(worker), ramp.pushes, inner.leave(ramp.inner, mine, worker))

    def join(ramp: Ramp, worker: int) -> Ramp:
        return dataclasses.replace(ramp, inner=inner.join(ramp.inner, worker))

    functions = {"init": init, "pull": pull, "push": push, "leave": leave, "join": join}
    return dataclasses.replace(inner, **functions, waits=True, micro_steps=micro_steps)
