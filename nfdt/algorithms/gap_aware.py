"""Gap-Aware: a gradient is divided, weight by weight, by how far the weights have moved since it was asked for.

Barkai, Hakimi and Schuster, "Gap Aware Mitigation of Gradient Staleness", ICLR 2020, arXiv:1909.10802:
Gap = |w - w_m| / C + 1, g <- g / Gap, where C is the running size of one update, so that the gap counts the updates
that went the same way, and not those that cancelled.

Deviation: C is the root of a running mean of the squared steps that the weights really took, whatever optimizer took
them; the paper computes the steps of SGD with momentum.
"""

from typing import NamedTuple

from nfdt.algorithm import AsyncAlgorithm, Hyper, Push, State, Update
from nfdt.tree import Array, Tree, zeros, zip_map

EPS = 1e-8  # of a weight that has not moved yet


class Shared(NamedTuple):
    square_step: list[Array]


def rule(keep: float = 0.9, strength: float = 1.0) -> AsyncAlgorithm:
    """`keep`: how much of the running size of an update stays; `strength` weighs the gap, 0 gives plain ASGD."""
    if not 0 <= keep < 1:
        raise ValueError(f"gap_aware: keep must be in [0, 1). Received: keep={keep}")
    if strength < 0:
        raise ValueError(f"gap_aware: strength must be >= 0. Received: strength={strength}")

    def penalize(g: Array, w: Array, w_m: Array, square_step: Array) -> Array:
        return g / (1.0 + strength * abs(w - w_m) / (square_step**0.5 + EPS))

    def init(params: Tree, workers: int) -> tuple[Shared, State]:
        return Shared(zeros(params)), params

    def pull(shared: Shared, seen: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Shared, State]:
        return params, shared, params

    def push(shared: Shared, seen: State, params: Tree, push: Push) -> tuple[Update | None, Shared, State]:
        step = zip_map(
            lambda s, w, before: keep * s + (1.0 - keep) * (w - before) ** 2.0, shared.square_step, params, push.before
        )
        return Update(zip_map(penalize, push.gradient, params, seen, step)), Shared(step), seen

    return AsyncAlgorithm(init, pull, push)
