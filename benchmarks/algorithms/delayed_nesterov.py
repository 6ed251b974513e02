"""Delayed Nesterov: the momentum of the server takes part in every n-th update only.

Liu et al. 2024, "Asynchronous Local-SGD Training for Language Modeling", arXiv:2401.09135, algorithm 3 with c = 0. For
n workers, and the t-th push:

    D <- D + g
    w <- w - eta g                                       between two rounds of n pushes
    m <- mu m + D / n;  w <- w - eta (g + n mu m);  D <- 0       at every n-th push

The paper's rate is n times this eta, and it divides g by n. So a gradient has the same whole effect, eta / (1 - mu), as
under the captured optimizer. Arrays have the shapes of the trainable variables.
"""

from typing import NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Push, State
from nfdt.tree import Array, Tree, send_current, with_momentum, zeros, zip_map


class Shared(NamedTuple):
    """State of the algorithm. `pushes` counts those since the momentum was applied."""

    momentum: list[Array]
    total: list[Array]  # D
    workers: int
    pushes: int


def rule(micro_steps: int = 1) -> AsyncAlgorithm:
    """Return delayed Nesterov. `micro_steps`: as in ddc_asgd."""

    def init(params: Tree, workers: int) -> tuple[Shared, None]:
        return Shared(zeros(params), zeros(params), workers, 0), None

    def push(shared: Shared, mine: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Shared, State]:
        total, pushes, n = zip_map(lambda d, g: d + g, shared.total, push.gradient), shared.pushes + 1, shared.workers
        if pushes < n:
            between = shared._replace(total=total, pushes=pushes)
            return AlgorithmUpdate(push.gradient, momentum="algorithm"), between, mine
        m = with_momentum(shared.momentum, [d / n for d in total], push.mu)
        direction = zip_map(lambda g, m: g + n * push.mu * m, push.gradient, m)
        return AlgorithmUpdate(direction, momentum="algorithm"), Shared(m, zeros(params), n, 0), mine

    return AsyncAlgorithm(
        init, send_current, push, own_momentum=lambda shared: True, needs_sgd=True, micro_steps=micro_steps
    )
