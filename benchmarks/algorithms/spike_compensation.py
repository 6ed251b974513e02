"""Spike compensation: a late gradient gets at once the effect that its momentum would have had during its delay.

Kosson et al. 2020, "Pipelined Backpropagation at Scale", arXiv:2003.11666, equations of SC_D and of the velocity form
of linear weight prediction. For a push that tau updates preceded since its pull:

    v <- mu v + g
    w <- w - eta (mu^tau v + (1 - mu^tau) / (1 - mu) g)
    w_m = w - eta T v                  sent with `prediction`: the weights that the velocity leads to in T updates

T is the number of other workers, which is the mean of tau. Arrays have the shapes of the trainable variables.
"""

from typing import NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State
from nfdt.tree import Array, Tree, look_ahead, with_momentum, zeros, zip_map


class Shared(NamedTuple):
    """State of the algorithm."""

    v: list[Array]
    others: int  # T


def rule(prediction: bool = False, micro_steps: int = 1) -> AsyncAlgorithm:
    """Return spike compensation.

    Args:
        prediction: Whether workers get predicted weights.
        micro_steps: As in ddc_asgd.
    """

    def init(params: Tree, workers: int) -> tuple[Shared, None]:
        return Shared(zeros(params), workers - 1), None

    def pull(shared: Shared, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Shared, State]:
        sent = look_ahead(params, shared.v, hyper.eta * shared.others) if prediction else params
        return sent, shared, mine

    def push(shared: Shared, mine: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Shared, State]:
        v, kept = with_momentum(shared.v, push.gradient, push.mu), push.mu**push.tau
        at_once = (1.0 - kept) / (1.0 - push.mu)
        direction = zip_map(lambda v, g: kept * v + at_once * g, v, push.gradient)
        return AlgorithmUpdate(direction, momentum="algorithm"), shared._replace(v=v), mine

    return AsyncAlgorithm(init, pull, push, own_momentum=lambda shared: True, needs_sgd=True, micro_steps=micro_steps)
