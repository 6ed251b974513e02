"""Lanes: a worker that pushes and pulls while it computes counts as two workers for the algorithm.

Each lane pulls, computes and pushes independently; only one lane computes at a time. So the state that an algorithm
keeps per worker (pull, momentum, delay) stays correct, and the scheduler needs no code for overlap. A lane's gradient
is one update staler, because the other lane pushes in between.
"""

from fdt.errors import UsageError
from nfdt.algorithm import AsyncAlgorithm
from nfdt.options import Options


def lanes_of(options: Options, rule: AsyncAlgorithm, workers: int, *, fed: bool) -> int:
    """Return the number of lanes per worker: 1, or 2 to overlap. Every process of a job computes the same number.

    "auto" overlaps only where this saves time. It does not overlap over shared memory (a push is one copy), with one
    worker (its gradients would become stale), or where the algorithm makes workers wait.

    Args:
        options: The job's options.
        rule: The algorithm.
        workers: Number of workers.
        fed: Whether the client sends the batches, in an order that two lanes would not keep.

    Raises:
        UsageError: If `--overlap on` is given for an algorithm that makes workers wait.
    """
    if options.overlap == "on" and rule.waits:
        raise UsageError("--overlap on needs a rule that does not wait for other workers. Received: one that waits")
    if fed:
        return 1
    if options.overlap == "auto":
        return 2 if options.channel == "grpc" and workers > 1 and not rule.waits else 1
    return 2 if options.overlap == "on" else 1
