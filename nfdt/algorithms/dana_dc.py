"""DANA-DC: one momentum per worker, a look-ahead over all of them, and delay compensation.

Hakimi, Barkai, Gabel and Schuster, "Taming Momentum in a Distributed Asynchronous Environment" (DANA), 2019,
arXiv:1907.11612, algorithms 4 to 6 and "DANA-DC". For worker m:

    v_m <- mu v_m + g + lam g*g*(w - w_m)
    w   <- w - eta v_m
    w_m =  w - eta mu sum_j v_j            sent to worker m

w_m is the point that the weights reach when the gradient arrives, if every worker pushes once until then. The
compensation is that of Zheng et al. 2017 (arXiv:1609.08326), taken from the weights that were sent.

Only for SGD: eta mu sum_j v_j is a displacement of the weights only where an update is eta times v. All arrays have the
shapes of the trainable variables.
"""

from typing import NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, require
from nfdt.tree import Array, Tree, compensated, look_ahead, sum_with, sum_without, with_momentum, zeros


class Shared(NamedTuple):
    """State of the algorithm: the sum of all workers' momenta."""

    total: list[Array]  # sum_j v_j


class Mine(NamedTuple):
    """State of one worker: its momentum v_m, and the weights w_m that were sent to it."""

    v: list[Array]
    seen: list[Array]


def rule(lam: float = 0.04) -> AsyncAlgorithm:
    """Return DANA-DC.

    Args:
        lam: Weight of the compensation, >= 0; 0 gives DANA-Slim's update, and without momentum plain ASGD.

    Raises:
        ValueError: If `lam` is negative.
    """
    require(lam >= 0, "dana_dc", "lam must be >= 0", lam=lam)

    def init(params: Tree, workers: int) -> tuple[Shared, Mine]:
        zero = zeros(params)
        return Shared(zero), Mine(zero, params)

    def pull(shared: Shared, mine: Mine, params: Tree, hyper: Hyper) -> tuple[Tree | None, Shared, Mine]:
        ahead = look_ahead(params, shared.total, hyper.eta * hyper.mu)
        return ahead, shared, Mine(mine.v, ahead)

    def push(shared: Shared, mine: Mine, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Shared, Mine]:
        fresh = compensated(push.gradient, params, mine.seen, lam)
        v = with_momentum(mine.v, fresh, push.mu)
        return (
            AlgorithmUpdate(v, momentum="algorithm", fresh=fresh),
            Shared(sum_with(shared.total, v, mine.v)),
            Mine(v, mine.seen),
        )

    def leave(shared: Shared, mine: Mine, worker: int) -> Shared:
        return Shared(sum_without(shared.total, mine.v))

    return AsyncAlgorithm(init, pull, push, leave, own_momentum=lambda shared: True, needs_sgd=True)
