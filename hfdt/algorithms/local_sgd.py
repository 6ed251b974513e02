"""Local SGD: every rank trains alone for some batches, then the parameters are averaged.

Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, arXiv:1805.09767, algorithm 1; `local_steps` is
its H. A round of rank k, which trains on n_k of the round's n samples:

    w_k <- w_k - eta g_k               H times on the rank's own batches, by the captured optimizer
    w   = sum_k (n_k / n) w_k          the average; every rank continues from w_k = w

Deviation: the script's own optimizer takes the steps, and its slots (momentum, Adam's moments) are averaged too. So
with local_steps = 1 and SGD, with or without momentum, it equals allreduce.
"""

from typing import Any

from hfdt.algorithm import ReduceGroup, RoundAlgorithm, Tree


def rule(local_steps: int = 8) -> RoundAlgorithm:
    """Make local SGD.

    Args:
        local_steps: Batches between two averages, 1 or more; the last round of an epoch may be shorter.

    Raises:
        ValueError: `local_steps` is below 1.
    """
    if local_steps < 1:
        raise ValueError(f"local_sgd: local_steps must be 1 or more. Received: local_steps={local_steps}")

    def init(params: Tree) -> Any:
        return None

    def end(state: Any, params: Tree, mine: Tree, group: ReduceGroup) -> tuple[Tree, Any]:
        return group.mean(mine), state

    return RoundAlgorithm(init, end, batches=local_steps, slots=True)
