"""DC-ASGDK: DC-ASGD with one momentum on the server.

The baseline of the DDC-ASGD thesis, which writes "impulse" for momentum; the thesis's abstract gives no formula. This
is Zheng et al., arXiv:1609.08326, equation 10, with Polyak's momentum, one v for the pushes of all workers:

    v <- mu v + g + lam g*g*(w - w_m)
    w <- w - eta v

The momentum assumes sequential pushes, and asynchrony adds momentum (Mitliagkas et al. 2016): training diverges early.
"""

from typing import NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Push, State, require, send_and_keep
from nfdt.tree import Array, Tree, compensated, with_momentum, zeros


class Shared(NamedTuple):
    """State of the algorithm: the momentum v, in the shapes of the trainable variables."""

    v: list[Array]


def rule(lam: float = 0.04, mu: float | None = None) -> AsyncAlgorithm:
    """Return DC-ASGDK.

    Args:
        lam: Weight of the compensation, >= 0.
        mu: Momentum, in [0, 1); None: the captured optimizer's.

    Raises:
        ValueError: If a parameter is out of range.
    """
    require(lam >= 0, "dc_asgd_k", "lam must be >= 0", lam=lam)
    require(mu is None or 0 <= mu < 1, "dc_asgd_k", "mu must be in [0, 1)", mu=mu)

    def init(params: Tree, workers: int) -> tuple[Shared, State]:
        return Shared(zeros(params)), params

    def push(shared: Shared, seen: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Shared, State]:
        fresh = compensated(push.gradient, params, seen, lam)
        v = with_momentum(shared.v, fresh, push.mu if mu is None else mu)
        return AlgorithmUpdate(v, momentum="algorithm", fresh=fresh), Shared(v), seen

    return AsyncAlgorithm(init, send_and_keep, push)
