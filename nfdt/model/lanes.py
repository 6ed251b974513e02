"""Overlap: a worker that pushes and pulls while it computes is two workers to the rule, taking turns on one device.

Each lane pulls, computes and pushes by itself; only computing is one at a time. So what a rule remembers of a worker
(its pull, its momentum, its delay) stays true without the policy knowing of overlap; a lane's gradient is one update
staler, for the other lane's push comes between.
"""

from fdt.errors import UsageError
from nfdt.algorithm import AsyncAlgorithm
from nfdt.options import Options


def lanes_of(options: Options, rule: AsyncAlgorithm, workers: int, *, fed: bool) -> int:
    """1, or 2 to overlap. The same in every process of a job.

    "auto" overlaps only where it pays: not over shared memory, where a push is one copy; not for one worker, who would
    be stale for nothing; not where the rule waits for all anyway. `fed`: batches come from the client in one
    order, which two lanes would not keep.
    """
    if options.overlap == "on" and rule.waits:
        raise UsageError(
            "--overlap on must go with a rule that does not wait for other workers. Received: one that does"
        )
    if fed:
        return 1
    if options.overlap == "auto":
        return 2 if options.channel == "grpc" and workers > 1 and not rule.waits else 1
    return 2 if options.overlap == "on" else 1
