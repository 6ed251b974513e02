"""Consensus ADMM: each worker minimises its own loss, with multipliers and a penalty that bind it to a common w.

Boyd et al., "Distributed Optimization and Statistical Learning via the Alternating Direction Method of Multipliers",
2011, section 7.1, equations 7.3 to 7.5: the baseline that DANE's paper compares with. One average a round:

    w_i = argmin O_i(w) + u_i . w + rho/2 |w - z|^2
    z   = mean_i (w_i + u_i / rho)                                                                 the average
    u_i <- u_i + rho (w_i - z)

The script's model holds z. Deviation as in dane.py: a worker minimises by `local_epochs` of the script's own optimizer,
which starts at z, unless `solver` is "cg".
"""

from hfdt.algorithm import LocalObjective, LocalProblem, ReduceGroup, RoundAlgorithm, Tree


def rule(rho: float = 0.1, local_epochs: int = 1, solver: str = "optimizer") -> RoundAlgorithm:
    """Make consensus ADMM.

    Args:
        rho: The weight of the penalty, and the step size of the multipliers u_i; above 0.
        local_epochs: Passes over a worker's data in each round.
        solver: "optimizer" or "cg", as in RoundAlgorithm.

    Raises:
        ValueError: A parameter is out of range.
    """
    if rho <= 0:
        raise ValueError(f"admm: rho must be above 0. Received: rho={rho}")

    def init(params: Tree) -> Tree:
        return [0.0 * p for p in params]

    def begin(u_i: Tree, z: Tree, shard: LocalObjective, group: ReduceGroup) -> tuple[LocalProblem, Tree]:
        return LocalProblem([-u for u in u_i], rho), u_i

    def end(u_i: Tree, z: Tree, w_i: Tree, group: ReduceGroup) -> tuple[Tree, Tree]:
        z = group.mean([w + u / rho for w, u in zip(w_i, u_i, strict=True)])
        return z, [u + rho * (w - c) for u, w, c in zip(u_i, w_i, z, strict=True)]

    own = "its multipliers and, except rank 0, its moments of the optimizer, which are rank 0's now"
    return RoundAlgorithm(init, end, begin, passes=local_epochs, solver=solver, own=own)
