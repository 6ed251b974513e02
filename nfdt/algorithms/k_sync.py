"""K-sync SGD: a round ends with its first k gradients; later gradients of the same weights are dropped.

Chen et al., "Revisiting Distributed Synchronous SGD", 2016, arXiv:1604.00981, algorithms 3 and 4 (n - k are their
backup workers). The name is that of Dutta et al., "Slow and Stale Gradients Can Win the Race", AISTATS 2018,
arXiv:1803.01113. With F the first k of the n workers whose gradients of w arrive:

    w <- w - eta mean_(m in F) g_m(w)            the mean by samples; the other n - k gradients of this w are dropped

k = n is SSGD. `optimizer.iterations` and schedules count rounds. A dropped batch is not trained on in that epoch.
"""

from nfdt.algorithm import AsyncAlgorithm, require
from nfdt.algorithms.ssgd import Round, rounds

NOTE = "k_sync: a round is its first k batches, later ones are dropped; optimizer.iterations and schedules count rounds"


def rule(k: int = 0) -> AsyncAlgorithm:
    """Return K-sync SGD.

    Args:
        k: Number of gradients in a round, at most the number of workers; 0: one fewer than workers.

    Raises:
        ValueError: If `k` is negative.
    """
    require(k >= 0, "k_sync", "k must be >= 0", k=k)

    def complete(now: Round) -> bool:
        workers = len(now.members)
        return len(now.pushed.arrived) >= max(1, min(k or workers - 1, workers))

    return rounds(complete, NOTE)
