"""Rennala SGD: an update is the mean of the first B gradients of the same weights; no worker waits.

Tyurin and Richtarik, "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed Computation
Model", NeurIPS 2023, arXiv:2305.12387, Rennala SGD:

    g <- 0, b <- 0
    until b = B:  for a gradient g_i of the current x:  g <- g + g_i / B,  b <- b + 1;  drop a gradient of another x
    x <- x - gamma g

A worker that has pushed computes the next gradient at once, so a fast one gives several of the B. The mean weights
gradients by samples, so that a partial last batch counts correctly. `optimizer.iterations` and schedules count updates.
A dropped batch is not trained on in that epoch. The method is optimal where all workers draw from the same data.
"""

from nfdt.algorithm import AsyncAlgorithm, require
from nfdt.algorithms.ssgd import Round, rounds

NOTE = "rennala: an update is the mean of {} gradients, stale ones are dropped; optimizer.iterations counts updates"


def rule(batch: int = 0) -> AsyncAlgorithm:
    """Return Rennala SGD.

    Args:
        batch: B, the number of gradients of an update; 0: the number of workers.

    Raises:
        ValueError: If `batch` is negative.
    """
    require(batch >= 0, "rennala", "batch must be >= 0", batch=batch)

    def complete(now: Round) -> bool:
        return now.pushed.count >= (batch or len(now.members))

    return rounds(complete, NOTE.format(batch or "as many as workers"), waits=False)
