"""ASGD: the server applies every gradient when it arrives, whatever its delay.

Dean et al., "Large Scale Distributed Deep Networks" (Downpour SGD), NIPS 2012, section 4.1, without a number of an
equation. For worker m:

    w_m = w                      sent at its pull
    w   <- w - eta g(w_m)        when its gradient arrives; w has meanwhile had tau updates of other workers

Workers pull and push on every step (n_fetch = n_push = 1 in the paper). The captured optimizer replaces the paper's
Adagrad.
"""

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Push, State, without_state
from nfdt.tree import Tree, send_current


def rule() -> AsyncAlgorithm:
    """Return ASGD: w <- w - eta g. It has no parameters and no state."""

    def push(shared: State, mine: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, State, State]:
        return AlgorithmUpdate(push.gradient), shared, mine

    return AsyncAlgorithm(without_state, send_current, push)
