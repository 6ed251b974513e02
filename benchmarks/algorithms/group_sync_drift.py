"""Group synchronisation with the captured momentum, whose rate is divided by measured drift instead of staleness.

`group_sync(momentum="captured")` divides a group's rate by tau, the number of updates since its pull, as if all of them
had moved the weights in one direction. Here the divisor is how far the weights have moved, in steps of an update:

    r_m = |w - w_m| / s       s^2: running mean of the squared length of one update, over all variables
    eta (n_g / n) / max(r_g, 1)       r_g: the largest r_m of the round

Updates in one direction give r = tau, updates in independent directions sqrt(tau). This project's formula, after the
gap of Barkai et al. 2020, arXiv:1909.10802, which is one of each weight.
"""

from dataclasses import replace
from typing import NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State
from nfdt.algorithms import group_sync
from nfdt.tree import Array, Tree, total, zip_map

KEEP = 0.99  # decay of the running mean, once it covers a hundred updates
TINY_SQUARE = 1e-30


class Shared(NamedTuple):
    """State of the algorithm."""

    grouped: State  # of group_sync
    square: Array  # s^2
    steps: int = 0  # measured
    stepped: bool = False  # whether `square` lacks the last update


def _apart(first: list[Array], second: list[Array]) -> Array:
    """Return the squared length of a difference, over all variables, 0-d."""
    squares = [total(square) for square in zip_map(lambda a, b: (a - b) * (a - b), first, second)]
    return sum(squares[1:], squares[0])


def _measured(shared: Shared, params: Tree, before: Tree) -> Shared:
    """Add the last update to the running mean, at the first push after it."""
    if not shared.stepped:
        return shared
    part = max(1.0 / (shared.steps + 1), 1.0 - KEEP)
    square = (1.0 - part) * shared.square + part * _apart(params, before)
    return shared._replace(square=square, steps=shared.steps + 1, stepped=False)


def rule(groups: int = 0, ratio: float = 1.5, warm_up: int = 5, rate: str = "own") -> AsyncAlgorithm:
    """Return the algorithm. Parameters: as in group_sync."""
    base = group_sync.rule(groups, ratio, warm_up, momentum="captured", rate=rate)

    def after(shared: Shared, update: AlgorithmUpdate | None, grouped: State) -> tuple[AlgorithmUpdate | None, Shared]:
        return update, shared._replace(grouped=grouped, stepped=shared.stepped or update is not None)

    def init(params: Tree, workers: int) -> tuple[Shared, State]:
        return Shared(base.init(params, workers)[0], _apart(params, params)), params

    def pull(shared: Shared, seen: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Shared, State]:
        sent, grouped, _ = base.pull(shared.grouped, None, params, hyper)
        return sent, shared._replace(grouped=grouped), seen if sent is None else params

    def push(shared: Shared, seen: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Shared, State]:
        shared = _measured(shared, params, push.before)
        drift = (_apart(params, seen) / (shared.square + TINY_SQUARE)) ** 0.5
        update, grouped, _ = base.push(shared.grouped, None, params, replace(push, tau=drift))
        return *after(shared, update, grouped), seen

    def leave(shared: Shared, seen: State, worker: int) -> Shared:
        return shared._replace(grouped=base.leave(shared.grouped, None, worker))

    def join(shared: Shared, worker: int) -> Shared:
        return shared._replace(grouped=base.join(shared.grouped, worker))

    def flush(shared: Shared, params: Tree) -> tuple[AlgorithmUpdate | None, Shared]:
        return after(shared, *base.flush(shared.grouped, params))

    return AsyncAlgorithm(init, pull, push, leave, join, flush, waits=True, note=group_sync.NOTE)
