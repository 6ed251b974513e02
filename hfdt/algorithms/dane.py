"""DANE: an approximate Newton method that averages gradients once and local minimisers once a round.

Shamir, Srebro and Zhang, "Communication-Efficient Distributed Optimization using an Approximate Newton-type Method",
ICML 2014, arXiv:1312.7853, figure 1 and equation 13. Worker i holds O_i, the mean loss over its part of the data; O is
the mean over all. A round from w0:

    grad O(w0) = mean_i grad O_i(w0)                                                             the first average
    w_i = argmin O_i(w) - (grad O_i(w0) - eta grad O(w0)) . w + mu/2 |w - w0|^2
    w   = mean_i w_i                                                                             the second

For a quadratic this is w = w0 - eta mean_i (H_i + mu)^-1 grad O(w0): Newton's step, up to the difference between H_i
and H.

Deviations. A worker minimises by `local_epochs` of the script's own optimizer, unless `solver` is "cg". With `mu` None,
the optimizer uses NETWORK_MU and "cg" uses `_measured`. Means weight a worker by its number of samples.
"""

from typing import Any

import numpy as np

from hfdt.algorithm import LocalObjective, LocalProblem, ReduceGroup, RoundAlgorithm, Tree
from hfdt.worker.conjugate_gradients import dot, norm

# A few hundred steps of an optimizer stay close to w0 anyway, so a penalty on the distance only costs progress.
NETWORK_MU = 0.0


def rule(eta: float = 1.0, mu: float | None = None, local_epochs: int = 1, solver: str = "optimizer") -> RoundAlgorithm:
    """Make DANE.

    Args:
        eta: The weight of the gradient over all workers; above 0.
        mu: The weight of the penalty on the distance from w0, 0 or more; None chooses it, see above.
        local_epochs: Passes over a worker's data in each round.
        solver: "optimizer" or "cg", as in RoundAlgorithm.

    Raises:
        ValueError: A parameter is out of range.
    """
    _check(eta, mu)

    def init(params: Tree) -> float | None:
        return NETWORK_MU if mu is None and solver == "optimizer" else mu

    def begin(mu: float | None, w0: Tree, shard: LocalObjective, group: ReduceGroup) -> tuple[LocalProblem, float]:
        mine = shard.gradient()
        whole = group.mean(mine)
        if mu is None:
            mu = _measured(shard, whole, group)
        return LocalProblem([g_i - eta * g for g_i, g in zip(mine, whole, strict=True)], mu), mu

    def end(mu: float | None, w0: Tree, w_i: Tree, group: ReduceGroup) -> tuple[Tree, float | None]:
        return group.mean(w_i), mu

    exact = "its measured mu" if mu is None else ""
    own = exact if solver == "cg" else "its moments of the optimizer, which are rank 0's now"
    return RoundAlgorithm(init, end, begin, passes=local_epochs, solver=solver, own=own)


def _measured(shard: LocalObjective, g: Tree, group: ReduceGroup) -> float:
    """Return mu = h q / (1 + q), where h = g.H g / g.g and q = mean_i |H_i g - H g|^2 / |h g|^2.

    It costs an average, once a run. This mu makes the step Newton's on average. Let H_i come from a worker's n samples
    of d independent features, with curvature h each. Then mean_i (H_i + mu)^-1 tends to the Stieltjes transform s of
    Marchenko and Pastur's law at -mu, which solves s = 1 / (mu + h / (1 + d/n h s)). s = 1/h requires mu = h d/n / (1 +
    d/n), and q estimates d/n. One worker, or equal shards, give 0: Newton's step itself.
    """
    mine = shard.curvature(g)
    whole = group.mean(mine)
    apart = norm([h_i - h for h_i, h in zip(mine, whole, strict=True)]) ** 2
    square = max(norm(g) ** 2, np.finfo(np.float64).tiny)
    h = dot(g, whole) / square
    if h <= 0:  # not a quadratic with a minimum
        return 0.0
    q = float(group.mean([np.float64(apart)])[0]) / (h**2 * square)
    return float(h * q / (1 + q))


def _check(eta: float, mu: Any) -> None:
    if eta <= 0:
        raise ValueError(f"dane: eta must be above 0. Received: eta={eta}")
    if mu is not None and not (isinstance(mu, (int, float)) and mu >= 0):
        raise ValueError(f"dane: mu must be 0 or more, or not given. Received: mu={mu!r}")
