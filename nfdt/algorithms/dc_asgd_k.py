"""DC-ASGDK: DC-ASGD with one momentum on the server.

The baseline of the DDC-ASGD thesis, which writes "impulse" for momentum; the thesis's abstract gives no formula. This
is Zheng et al., arXiv:1609.08326, equation 10, with Polyak's momentum, one v for the pushes of all workers:

    v <- mu v + g + lam g*g*(w - w_m)
    w <- w - eta v

The momentum assumes sequential pushes, and asynchrony adds momentum (Mitliagkas et al. 2016): training diverges early.

weights="delay" is a literal reading of the thesis's DDC-ASGD, which sets by the delay how far momentum and compensation
are trusted: both terms are divided by 1 + tau, tau being the push's staleness:

    v <- mu v / (1 + tau) + g + lam g*g*(w - w_m) / (1 + tau)
"""

from typing import NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Push, State, require
from nfdt.tree import Array, Tree, compensated, send_and_keep, with_momentum, zeros


class Shared(NamedTuple):
    """State of the algorithm: the momentum v, in the shapes of the trainable variables."""

    v: list[Array]


def rule(lam: float = 0.04, mu: float | None = None, weights: str = "constant") -> AsyncAlgorithm:
    """Return DC-ASGDK.

    Args:
        lam: Weight of the compensation, >= 0.
        mu: Momentum, in [0, 1); None: the captured optimizer's.
        weights: "constant", or "delay": momentum and compensation are divided by 1 + tau.

    Raises:
        ValueError: If a parameter is out of range.
    """
    require(lam >= 0, "dc_asgd_k", "lam must be >= 0", lam=lam)
    require(mu is None or 0 <= mu < 1, "dc_asgd_k", "mu must be in [0, 1)", mu=mu)
    require(weights in ("constant", "delay"), "dc_asgd_k", "weights must be constant or delay", weights=weights)

    def init(params: Tree, workers: int) -> tuple[Shared, State]:
        return Shared(zeros(params)), params

    def push(shared: Shared, seen: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Shared, State]:
        trust = 1.0 / (1.0 + push.tau) if weights == "delay" else 1.0
        fresh = compensated(push.gradient, params, seen, lam * trust)
        v = with_momentum(shared.v, fresh, (push.mu if mu is None else mu) * trust)
        return AlgorithmUpdate(v, momentum="algorithm", fresh=fresh), Shared(v), seen

    return AsyncAlgorithm(init, send_and_keep, push, own_momentum=lambda shared: True)
