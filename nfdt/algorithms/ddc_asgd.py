"""DDC-ASGD: the gradient and the momentum of a push are weighted by the effect of that push's own delay.

The idea is that of the DDC-ASGD thesis, whose formulas are not available; the formulas here are this project's.
docs/algorithms.md explains their derivation and the effect of each term. For worker m, for every weight:

    d    = w - w_m                           change since w_m was sent
    g'   = g / (1 + |d| / (k r))             where d has the sign of -g: other pushes have made part of this step
           g                                 elsewhere
    v_m  <- mu v_m + g'                      momentum per worker; it replaces the captured optimizer's
    w_m  = w - mu p sum_j v_j                sent: the weights after the steps of all momenta

r is the running size of one update; p is that of an update per unit of direction. Both are measured on the weights, so
they do not depend on the optimizer. With a single worker there is no delay: the captured optimizer works alone.

With `micro_steps` a worker's g is the mean gradient along some steps of SGD over parts of its batch, instead of the
gradient at w_m (nfdt/worker/step.py). This matters where many workers leave few rounds.

Hakimi et al. 2019 (arXiv:1907.11612) give momentum per worker and look-ahead; Barkai et al. 2020 (arXiv:1909.10802)
give a penalty by drift. An optimizer whose momentum cannot be off (nfdt/model/variables.py) keeps it: `momentum` is
then "captured", and only the penalty applies.
"""

from typing import NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State, require
from nfdt.tree import (
    Array,
    Tree,
    look_ahead,
    maximum,
    running_square,
    sum_with,
    sum_without,
    with_momentum,
    zeros,
    zip_map,
)

KEEP = 0.99  # of running squares
TINY = 1e-30


class Shared(NamedTuple):
    """State of the algorithm; all arrays have the shapes of the trainable variables."""

    total: list[Array]  # sum_j v_j
    direction: list[Array]  # running square of the v applied
    step: list[Array]  # running square of the resulting change of the weights


class Mine(NamedTuple):
    """State of one worker: its momentum v_m, and the weights w_m that were sent to it."""

    v: list[Array]
    sent: list[Array]


def rule(k: float = 4.0, momentum: str = "algorithm", micro_steps: int = 1) -> AsyncAlgorithm:
    """Return DDC-ASGD.

    Args:
        k: Drift, in updates in a gradient's own direction, at which the gradient counts half; > 0.
        momentum: "algorithm": the algorithm's replaces the optimizer's. "captured": the optimizer keeps its own.
        micro_steps: Parts of a batch over which a worker takes steps of SGD; the push is their mean gradient. More than
            1 needs SGD.

    Raises:
        ValueError: If a parameter is out of range.
    """
    require(k > 0, "ddc_asgd", "k must be > 0", k=k)
    known = momentum in ("algorithm", "captured")
    require(known, "ddc_asgd", "momentum must be algorithm or captured", momentum=momentum)
    require(micro_steps >= 1, "ddc_asgd", "micro_steps must be >= 1", micro_steps=micro_steps)

    def pull(shared: State, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, State, State]:
        if shared is None:
            return params, shared, mine
        if momentum == "captured":
            return params, shared, Mine(mine.v, params)
        ahead = zip_map(lambda step, v: hyper.mu * (step / (v + TINY)) ** 0.5, shared.step, shared.direction)
        sent = look_ahead(params, shared.total, ahead)
        return sent, shared, Mine(mine.v, sent)

    def push(shared: State, mine: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, State, State]:
        if shared is None:
            return AlgorithmUpdate(push.gradient), shared, mine
        step = running_square(shared.step, zip_map(lambda w, before: w - before, params, push.before), KEEP)
        fresh = zip_map(lambda g, w, w_m, s: _weigh(g, w, w_m, s, k), push.gradient, params, mine.sent, step)
        if momentum == "captured":
            return AlgorithmUpdate(fresh), shared._replace(step=step), mine
        v = with_momentum(mine.v, fresh, push.mu)
        total, direction = sum_with(shared.total, v, mine.v), running_square(shared.direction, v, KEEP)
        return AlgorithmUpdate(v, momentum="algorithm", fresh=fresh), Shared(total, direction, step), Mine(v, mine.sent)

    own, sgd = _is_not_alone if momentum == "algorithm" else None, micro_steps > 1
    return AsyncAlgorithm(_init, pull, push, _leave, own_momentum=own, needs_sgd=sgd, micro_steps=micro_steps)


def _init(params: Tree, workers: int) -> tuple[Shared | None, Mine | None]:
    if workers == 1:
        return None, None
    zero = zeros(params)
    return Shared(zero, zero, zero), Mine(zero, params)


def _is_not_alone(shared: State) -> bool:
    return shared is not None


def _leave(shared: State, mine: State, worker: int) -> State:
    return shared if shared is None else shared._replace(total=sum_without(shared.total, mine.v))


def _weigh(g: Array, w: Array, w_m: Array, step: Array, k: float) -> Array:
    """Return g'; r is the square root of `step`."""
    taken = maximum(0.0, g * (w_m - w)) / (abs(g) + TINY)  # |d| where d has the sign of -g, else 0
    return g / (1.0 + taken / (k * step**0.5 + TINY))
