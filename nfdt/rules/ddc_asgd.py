"""DDC-ASGD: momentum and delay compensation, both weighed on every push by that push's own delay.

The idea is the DDC-ASGD thesis's; its formulas are ours (docs/algorithms.md says how they were chosen). For worker m:

    d_m    = w - w_m                                   the drift since its pull; w_m is what it was sent
    g'     = g + lam |g| / |g*g*d_m|  g*g*d_m          the delay term of DC-ASGD, in proportion to the gradient
    g''    = g' / (1 + |d_m| / (K r))                  the penalty: r is the running size of one update
    v_m    <- mu v_m + g'';   w <- w - eta v_m         a momentum per worker
    send w - eta mu sum_j v_j                          where the weights will be when it pushes

Zheng et al. 2017 (arXiv:1609.08326) for the delay term, Hakimi et al. 2019 (arXiv:1907.11612) for momentum per worker
and look-ahead, Barkai et al. 2020 (arXiv:1909.10802) for the penalty. Norms are per variable.
"""

from typing import NamedTuple

from nfdt.rule import Hyper, Push, Rule, Update
from nfdt.tree import Array, Tree, total, zip_map

EPS = 1e-12
KEEP = 0.99  # of the running size of an update


class Shared(NamedTuple):
    total: list[Array]  # sum_j v_j
    square: list[Array]  # running |eta v|^2


class Mine(NamedTuple):
    v: list[Array]
    seen: list[Array]


def rule(lam: float = 0.2, k: float = 4.0) -> Rule:
    """`lam` weighs the delay term; `k` is how many updates' worth of drift halves a gradient."""
    if lam < 0:
        raise ValueError(f"ddc_asgd: lam must be >= 0. Received: lam={lam}")
    if k <= 0:
        raise ValueError(f"ddc_asgd: k must be > 0. Received: k={k}")

    def weigh(g: Array, w: Array, w_m: Array, square: Array) -> Array:
        d = w - w_m
        delay = g * g * d
        compensated = g + lam * _norm(g) / (_norm(delay) + EPS) * delay
        return compensated / (1.0 + _norm(d) / (k * square**0.5 + EPS))

    def init(params: Tree, workers: int) -> tuple[Shared, Mine]:
        zero = zip_map(lambda w: w * 0.0, params)
        return Shared(zero, zip_map(total, zero)), Mine(zero, params)

    def pull(shared: Shared, mine: Mine, params: Tree, hyper: Hyper) -> tuple[Tree | None, Shared, Mine]:
        ahead = zip_map(lambda w, total: w - hyper.eta * hyper.mu * total, params, shared.total)
        return ahead, shared, Mine(mine.v, ahead)

    def push(shared: Shared, mine: Mine, params: Tree, push: Push) -> tuple[Update | None, Shared, Mine]:
        fresh = zip_map(weigh, push.gradient, params, mine.seen, shared.square)
        v = zip_map(lambda v, g: push.mu * v + g, mine.v, fresh)
        all_v = zip_map(lambda total, new, old: total + (new - old), shared.total, v, mine.v)
        square = zip_map(lambda s, v: KEEP * s + (1 - KEEP) * total(v * v) * push.eta**2.0, shared.square, v)
        return Update(v, momentum="rule", fresh=fresh), Shared(all_v, square), Mine(v, mine.seen)

    def leave(shared: Shared, mine: Mine, worker: int) -> Shared:
        return shared._replace(total=zip_map(lambda total, v: total - v, shared.total, mine.v))

    return Rule(init, pull, push, leave, needs_sgd=True)


def _norm(x: Array) -> Array:
    return total(x * x) ** 0.5
