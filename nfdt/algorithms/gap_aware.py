"""Gap-Aware: each weight's gradient is divided by the distance that the weight moved since the pull.

Barkai, Hakimi and Schuster, "Gap Aware Mitigation of Gradient Staleness", ICLR 2020, arXiv:1909.10802: Gap = |w - w_m|
/ C + 1, g <- g / Gap. C is the running size of one update. So the gap counts updates in the same direction, and not
updates that cancelled each other.

Deviation: C is the root of a running mean of the squared changes of the weights, for any optimizer. The paper computes
the steps of SGD with momentum. All arrays have the shapes of the trainable variables.
"""

from typing import NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Push, State, require
from nfdt.tree import Array, Tree, running_square, send_and_keep, zeros, zip_map

EPS = 1e-8  # avoids 0 / 0 for a weight that has not moved yet


class Shared(NamedTuple):
    """State of the algorithm: the running mean of squared steps."""

    square_step: list[Array]


def rule(keep: float = 0.9, strength: float = 1.0) -> AsyncAlgorithm:
    """Return Gap-Aware.

    Args:
        keep: Decay of the running mean of squared steps, in [0, 1).
        strength: Factor on the gap, >= 0; 0 gives plain ASGD.

    Raises:
        ValueError: If a parameter is out of range.
    """
    require(0 <= keep < 1, "gap_aware", "keep must be in [0, 1)", keep=keep)
    require(strength >= 0, "gap_aware", "strength must be >= 0", strength=strength)

    def penalize(g: Array, w: Array, w_m: Array, square_step: Array) -> Array:
        return g / (1.0 + strength * abs(w - w_m) / (square_step**0.5 + EPS))

    def init(params: Tree, workers: int) -> tuple[Shared, State]:
        return Shared(zeros(params)), params

    def push(shared: Shared, seen: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Shared, State]:
        step = running_square(shared.square_step, zip_map(lambda w, before: w - before, params, push.before), keep)
        return AlgorithmUpdate(zip_map(penalize, push.gradient, params, seen, step)), Shared(step), seen

    return AsyncAlgorithm(init, send_and_keep, push)
