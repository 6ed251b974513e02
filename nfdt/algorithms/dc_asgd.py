"""DC-ASGD: asynchronous SGD with first-order delay compensation.

Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017, arXiv:1609.08326, equation
10: g(w_m) + lam g*g*(w - w_m). The term extrapolates the gradient from the weights w_m that worker m pulled to the
current weights w; g*g approximates the Hessian's diagonal. Names follow the paper. The server stores w_m at each pull,
per worker, in the shapes of the trainable variables.

Deviation: the captured optimizer applies the compensated gradient; the paper uses plain SGD. The term has the unit of
the loss, not of the optimizer. So it means the same under momentum and under Adam, which rescales the sum.
"""

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Push, State, require
from nfdt.tree import Tree, compensated, send_and_keep


def rule(lam: float = 0.04) -> AsyncAlgorithm:
    """Return DC-ASGD.

    Args:
        lam: Weight of the compensation, >= 0; 0 gives plain ASGD.

    Raises:
        ValueError: If `lam` is negative.
    """
    require(lam >= 0, "dc_asgd", "lam must be >= 0", lam=lam)

    def init(params: Tree, workers: int) -> tuple[State, State]:
        return None, params

    def push(shared: State, seen: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, State, State]:
        return AlgorithmUpdate(compensated(push.gradient, params, seen, lam)), shared, seen

    return AsyncAlgorithm(init, send_and_keep, push)
