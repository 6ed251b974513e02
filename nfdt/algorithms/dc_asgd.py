"""DC-ASGD: asynchronous SGD with first-order delay compensation.

Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017, arXiv:1609.08326,
equation 10: the late gradient g(w_m) is moved to the weights w it meets by lam * g*g*(w - w_m), g*g standing for the
Hessian's diagonal. Names follow the paper. w_m is backed up at pull, per worker.

Deviation: the compensated gradient goes through the captured optimizer; the paper's is plain SGD. The term is in
units of the loss, not of the optimizer, so it means the same under momentum and under Adam, which rescales the sum.
"""

from nfdt.algorithm import AsyncAlgorithm, Hyper, Push, State, Update
from nfdt.tree import Array, Tree, zip_map


def rule(lam: float = 0.04) -> AsyncAlgorithm:
    """`lam` weighs the compensation; 0 gives plain ASGD."""
    if lam < 0:
        raise ValueError(f"dc_asgd: lam must be >= 0. Received: lam={lam}")

    def compensate(g: Array, w: Array, w_m: Array) -> Array:
        return g + lam * g * g * (w - w_m)

    def init(params: Tree, workers: int) -> tuple[State, State]:
        return None, params

    def pull(shared: State, seen: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, State, State]:
        return params, shared, params  # what this worker now holds is what its next gradient is compensated from

    def push(shared: State, seen: State, params: Tree, push: Push) -> tuple[Update | None, State, State]:
        return Update(zip_map(compensate, push.gradient, params, seen)), shared, seen

    return AsyncAlgorithm(init, pull, push)
