"""Synchronous SGD: every rank applies the gradient of the global batch.

Rank k computes g_k, the mean gradient of its n_k of the batch's n samples:

    g = sum_k (n_k / n) g_k            one all-reduce
    w <- w - eta g                     the captured optimizer's step, the same on every rank

g is the gradient of the batch's mean loss. So all ranks stay equal, and the loss curve is that of a single machine.
Ring all-reduce: Patarasuk and Yuan, 2009; Sergeev and Del Balso, 2018, arXiv:1802.05799.
"""

from hfdt.algorithm import Local, ReduceGroup, StepAlgorithm, Tree


def rule() -> StepAlgorithm:
    """Make synchronous SGD. It has no parameters and no state."""

    def init(params: Tree, group: ReduceGroup) -> Tree:
        return []

    def step(state: Tree, params: Tree, local: Local, group: ReduceGroup) -> tuple[Tree, Tree]:
        return local.update(group.mean(local.gradient)), state

    return StepAlgorithm(init, step)
