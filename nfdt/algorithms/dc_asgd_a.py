"""DC-ASGD-a: delay compensation whose weight adapts to each weight's running squared gradient.

Zheng et al., ICML 2017, arXiv:1609.08326, section 5 and equation 14. Names follow the paper; m = 0.95:

    lambda_t      = lambda_0 / sqrt(MeanSquare(t) + eps)
    MeanSquare(t) = m MeanSquare(t - 1) + (1 - m) g*g

Deviations: MeanSquare is kept per worker, in the shapes of the trainable variables, so that it covers the gradients
that it compensates. It leaves out NaN and infinity, which a LossScaleOptimizer skips. The captured optimizer applies
the result.
"""

from typing import NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State, require
from nfdt.tree import Array, Tree, compensated, finite_or, running_square, zeros, zip_map

EPS = 1e-7


class Mine(NamedTuple):
    """State of one worker: the weights that it pulled, and MeanSquare."""

    seen: list[Array]
    mean_square: list[Array]


def rule(lam0: float = 2.0, m: float = 0.95) -> AsyncAlgorithm:
    """Return DC-ASGD-a.

    Args:
        lam0: Weight of the compensation, >= 0; 0 gives plain ASGD.
        m: Decay of the mean square, in [0, 1).

    Raises:
        ValueError: If a parameter is out of range.
    """
    require(lam0 >= 0, "dc_asgd_a", "lam0 must be >= 0", lam0=lam0)
    require(0 <= m < 1, "dc_asgd_a", "m must be in [0, 1)", m=m)

    def init(params: Tree, workers: int) -> tuple[State, Mine]:
        return None, Mine(params, zeros(params))

    def pull(shared: State, mine: Mine, params: Tree, hyper: Hyper) -> tuple[Tree | None, State, Mine]:
        return params, shared, Mine(params, mine.mean_square)

    def push(shared: State, mine: Mine, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, State, Mine]:
        mean_square = zip_map(finite_or, running_square(mine.mean_square, push.gradient, m), mine.mean_square)
        lam = [lam0 / (square + EPS) ** 0.5 for square in mean_square]
        return AlgorithmUpdate(compensated(push.gradient, params, mine.seen, lam)), shared, Mine(mine.seen, mean_square)

    return AsyncAlgorithm(init, pull, push)
