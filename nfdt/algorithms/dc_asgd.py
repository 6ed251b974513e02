"""DC-ASGD: asynchronous SGD with first-order delay compensation.

Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017, arXiv:1609.08326, equation
10: g(w_m) + lam g*g*(w - w_m). The term extrapolates the gradient from the weights w_m that worker m pulled to the
current weights w; g*g approximates the Hessian's diagonal. Names follow the paper. The server stores w_m at each pull,
per worker, in the shapes of the trainable variables.

Deviation: the captured optimizer applies the compensated gradient; the paper uses plain SGD. The term has the unit of
the loss, not of the optimizer. So it means the same under momentum and under Adam, which rescales the sum.
"""

from nfdt.algorithm import AsyncAlgorithm, Hyper, Push, State, Update
from nfdt.tree import Array, Tree, zip_map


def rule(lam: float = 0.04) -> AsyncAlgorithm:
    """Return DC-ASGD.

    Args:
        lam: Weight of the compensation, >= 0; 0 gives plain ASGD.

    Raises:
        ValueError: If `lam` is negative.
    """
    if lam < 0:
        raise ValueError(f"dc_asgd: lam must be >= 0. Received: lam={lam}")

    def compensate(g: Array, w: Array, w_m: Array) -> Array:
        return g + lam * g * g * (w - w_m)

    def init(params: Tree, workers: int) -> tuple[State, State]:
        return None, params

    def pull(shared: State, seen: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, State, State]:
        return params, shared, params  # w_m: the next gradient of this worker is compensated from it

    def push(shared: State, seen: State, params: Tree, push: Push) -> tuple[Update | None, State, State]:
        return Update(zip_map(compensate, push.gradient, params, seen)), shared, seen

    return AsyncAlgorithm(init, pull, push)
