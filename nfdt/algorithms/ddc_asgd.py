"""DDC-ASGD: the gradient and the momentum of a push, weighed by how far its own delay leaves them reliable.

The idea is the DDC-ASGD thesis's, its formulas are ours: docs/algorithms.md says how they were found and what each term
earns. For worker m, weight by weight:

    d    = w - w_m                           what happened since it was sent w_m
    g'   = g / (1 + |d| / (k r))             where d went the way of -g: others have taken part of this step already
           g                                 elsewhere
    v_m  <- mu v_m + g'                      a momentum per worker; the captured optimizer applies it for its own
    w_m  = w - mu p sum_j v_j                sent: where the momenta of all will have taken the weights by then

r is the running size of one update, p that of an update by unit of direction; both are measured on the weights, so that
the rule knows nothing of the optimizer that made them. A single worker is the captured optimizer alone: no delay.

Hakimi et al. 2019 (arXiv:1907.11612) for momentum per worker and look-ahead, Barkai et al. 2020 (arXiv:1909.10802)
for a penalty by drift. An optimizer whose momentum cannot be off (momentum.py) keeps it: `momentum` "captured", which
leaves the penalty alone.
"""

from typing import NamedTuple

from nfdt.algorithm import AsyncAlgorithm, Hyper, Push, State, Update
from nfdt.tree import Array, Tree, maximum, zeros, zip_map

KEEP = 0.99  # of running squares
TINY = 1e-30


class Shared(NamedTuple):
    total: list[Array]  # sum_j v_j
    direction: list[Array]  # running square of the v applied
    step: list[Array]  # running square of what that did to the weights


class Mine(NamedTuple):
    v: list[Array]
    sent: list[Array]


def rule(k: float = 4.0, momentum: str = "rule") -> AsyncAlgorithm:
    """`k`: after how many updates that all went a gradient's way it counts half."""
    if k <= 0:
        raise ValueError(f"ddc_asgd: k must be > 0. Received: k={k}")
    if momentum not in ("rule", "captured"):
        raise ValueError(f"ddc_asgd: momentum must be rule or captured. Received: momentum={momentum}")

    def init(params: Tree, workers: int) -> tuple[Shared | None, Mine | None]:
        if workers == 1:
            return None, None
        zero = zeros(params)
        return Shared(zero, zero, zero), Mine(zero, params)

    def pull(shared: State, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, State, State]:
        if shared is None:
            return params, shared, mine
        if momentum == "captured":
            return params, shared, Mine(mine.v, params)
        measured = zip(params, shared.total, shared.step, shared.direction, strict=True)
        sent = [_look_ahead(*arrays, hyper.mu) for arrays in measured]
        return sent, shared, Mine(mine.v, sent)

    def push(shared: State, mine: State, params: Tree, push: Push) -> tuple[Update | None, State, State]:
        if shared is None:
            return Update(push.gradient), shared, mine
        step = zip_map(lambda s, w, before: _running(s, w - before), shared.step, params, push.before)
        fresh = zip_map(lambda g, w, w_m, s: _weigh(g, w, w_m, s, k), push.gradient, params, mine.sent, step)
        if momentum == "captured":
            return Update(fresh), shared._replace(step=step), mine
        v = zip_map(lambda v, g: push.mu * v + g, mine.v, fresh)
        total = zip_map(lambda total, new, old: total + (new - old), shared.total, v, mine.v)
        direction = zip_map(_running, shared.direction, v)
        return Update(v, momentum="rule", fresh=fresh), Shared(total, direction, step), Mine(v, mine.sent)

    def leave(shared: State, mine: State, worker: int) -> State:
        if shared is None:
            return shared
        return shared._replace(total=zip_map(lambda total, v: total - v, shared.total, mine.v))

    return AsyncAlgorithm(init, pull, push, leave)


def _weigh(g: Array, w: Array, w_m: Array, step: Array, k: float) -> Array:
    """g', r being the root of `step`."""
    taken = maximum(0.0, g * (w_m - w)) / (abs(g) + TINY)  # |d| where it went the way of -g, else 0
    return g / (1.0 + taken / (k * step**0.5 + TINY))


def _look_ahead(w: Array, total: Array, step: Array, direction: Array, mu: Array) -> Array:
    return w - mu * (step / (direction + TINY)) ** 0.5 * total


def _running(square: Array, x: Array) -> Array:
    return KEEP * square + (1.0 - KEEP) * x * x
