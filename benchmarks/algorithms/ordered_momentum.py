"""Ordered momentum (OrMo): a late gradient enters the momentum with the weight of the round in which it began.

Shi, Yang and Li 2024, "Ordered Momentum for Asynchronous SGD", NeurIPS, arXiv:2407.19234, algorithm 2. n updates are a
round. For a gradient whose weights were sent r rounds ago:

    w <- w - eta mu u;  u <- mu u                        when a round begins
    u <- u + mu^r g
    w <- w - eta (1 - mu^(r + 1)) / (1 - mu) g

The paper has eta inside of u: while eta changes, the two differ. Arrays have the shapes of the trainable variables.
"""

from typing import NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push
from nfdt.tree import Array, Tree, zeros, zip_map


class Shared(NamedTuple):
    """State of the algorithm."""

    u: list[Array]
    workers: int
    updates: int


def rule(micro_steps: int = 1) -> AsyncAlgorithm:
    """Return ordered momentum. `micro_steps`: as in ddc_asgd. A worker's state is the round of its pull."""

    def init(params: Tree, workers: int) -> tuple[Shared, int]:
        return Shared(zeros(params), workers, 0), 0

    def pull(shared: Shared, mine: int, params: Tree, hyper: Hyper) -> tuple[Tree | None, Shared, int]:
        return params, shared, shared.updates // shared.workers

    def push(shared: Shared, mine: int, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Shared, int]:
        number, place = divmod(shared.updates, shared.workers)
        u = [push.mu * u for u in shared.u] if place == 0 else shared.u
        weight = push.mu ** float(number - mine)
        along = (1.0 - weight * push.mu) / (1.0 - push.mu)
        direction = [along * g for g in push.gradient]
        if place == 0:
            direction = zip_map(lambda d, u: d + u, direction, u)
        u = zip_map(lambda u, g: u + weight * g, u, push.gradient)
        return AlgorithmUpdate(direction, momentum="algorithm"), Shared(u, shared.workers, shared.updates + 1), mine

    return AsyncAlgorithm(init, pull, push, own_momentum=lambda shared: True, needs_sgd=True, micro_steps=micro_steps)
