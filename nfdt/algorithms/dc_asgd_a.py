"""DC-ASGD-a: delay compensation whose weight adapts to each weight's running squared gradient.

Zheng et al., ICML 2017, arXiv:1609.08326, section 5 and equation 14: lambda_t = lambda_0 / sqrt(MeanSquare(t) + eps),
MeanSquare(t) = m MeanSquare(t - 1) + (1 - m) g*g, m = 0.95. Names follow the paper.

Deviations: MeanSquare is kept per worker, so that it is of the gradients that are compensated with it; the
captured optimizer applies the result.
"""

from typing import NamedTuple

from nfdt.algorithm import AsyncAlgorithm, Hyper, Push, State, Update
from nfdt.tree import Array, Tree, zeros, zip_map

EPS = 1e-7


class Mine(NamedTuple):
    seen: list[Array]
    mean_square: list[Array]


def rule(lam0: float = 2.0, m: float = 0.95) -> AsyncAlgorithm:
    """`lam0` weighs the compensation, 0 gives plain ASGD; `m` is how much of the mean square stays."""
    if lam0 < 0:
        raise ValueError(f"dc_asgd_a: lam0 must be >= 0. Received: lam0={lam0}")
    if not 0 <= m < 1:
        raise ValueError(f"dc_asgd_a: m must be in [0, 1). Received: m={m}")

    def compensate(g: Array, w: Array, w_m: Array, mean_square: Array) -> Array:
        return g + lam0 / (mean_square + EPS) ** 0.5 * g * g * (w - w_m)

    def init(params: Tree, workers: int) -> tuple[State, Mine]:
        return None, Mine(params, zeros(params))

    def pull(shared: State, mine: Mine, params: Tree, hyper: Hyper) -> tuple[Tree | None, State, Mine]:
        return params, shared, Mine(params, mine.mean_square)

    def push(shared: State, mine: Mine, params: Tree, push: Push) -> tuple[Update | None, State, Mine]:
        mean_square = zip_map(lambda ms, g: m * ms + (1.0 - m) * g * g, mine.mean_square, push.gradient)
        compensated = zip_map(compensate, push.gradient, params, mine.seen, mean_square)
        return Update(compensated), shared, Mine(mine.seen, mean_square)

    return AsyncAlgorithm(init, pull, push)
