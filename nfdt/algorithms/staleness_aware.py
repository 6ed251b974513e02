"""Staleness-aware ASGD: the learning rate of a push is divided by its staleness.

Zhang, Gupta, Lian and Liu, "Staleness-Aware Async-SGD for Distributed Deep Learning", IJCAI 2016, arXiv:1511.05950,
equation 5: alpha = alpha_0 / tau. A push without staleness (tau = 0 here) gets the whole rate.
"""

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Push, State, without_state
from nfdt.tree import Tree, maximum, send_current


def rule() -> AsyncAlgorithm:
    """Return staleness-aware ASGD. It has no parameters and no state."""

    def push(shared: State, mine: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, State, State]:
        return AlgorithmUpdate(push.gradient, lr_scale=1.0 / maximum(push.tau, 1.0)), shared, mine

    return AsyncAlgorithm(without_state, send_current, push)
