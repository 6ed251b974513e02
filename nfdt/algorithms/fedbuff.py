"""FedBuff: workers train locally, and the server applies the mean of every K differences, whichever workers sent them.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, arXiv:2106.06639, algorithm 1:

    x_i <- the captured optimizer's step             Q times on the worker, from the w that it pulled
    delta_i = w - x_i                                the worker pushes it
    D <- D + s(tau) delta_i;  after K of them:  w <- w - eta_g D / K,  D <- 0

with s(tau) = 1 / sqrt(1 + tau), the weight of a difference that is tau updates stale. No worker waits and nothing is
dropped. At an epoch's end fewer than K differences are one update, divided by their number. `optimizer.iterations` and
schedules count the batches of one push for each update.
"""

from typing import NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Push, State, require
from nfdt.tree import Array, Tree, send_current, zip_map

NOTE = (
    "fedbuff: batches of a push: {}; an update is the mean of {} pushes; "
    "each update adds the batches of one push to optimizer.iterations"
)


class BufferedPushes(NamedTuple):
    """State of the algorithm: the sum D of `pushes` differences, the batches of the longest, and the number of workers.

    `total` is None where nothing is held.
    """

    workers: int
    total: list[Array] | None = None
    pushes: int = 0
    steps: int = 0


def rule(local_steps: int = 1, buffer: int = 0, lr: float = 1.0, weighted: bool = True) -> AsyncAlgorithm:
    """Return FedBuff.

    Args:
        local_steps: Q, number of batches between two pushes.
        buffer: K, number of pushes of an update; 0: the number of workers.
        lr: eta_g, the server's learning rate, > 0.
        weighted: Whether a push counts s(tau); otherwise 1.

    Raises:
        ValueError: If a parameter is out of range.
    """
    require(local_steps >= 1, "fedbuff", "local_steps must be >= 1", local_steps=local_steps)
    require(buffer >= 0, "fedbuff", "buffer must be >= 0", buffer=buffer)
    require(lr > 0, "fedbuff", "lr must be > 0", lr=lr)

    def init(params: Tree, workers: int) -> tuple[BufferedPushes, State]:
        return BufferedPushes(workers), None

    def push(
        held: BufferedPushes, mine: State, params: Tree, push: Push
    ) -> tuple[AlgorithmUpdate | None, BufferedPushes, State]:
        weight = (1.0 + push.tau) ** -0.5 if weighted else 1.0
        delta = [weight * difference for difference in push.gradient]
        total = delta if held.total is None else zip_map(lambda d, new: d + new, held.total, delta)
        held = BufferedPushes(held.workers, total, held.pushes + 1, max(held.steps, push.batches))
        return (*flush(held, params), mine) if held.pushes >= (buffer or held.workers) else (None, held, mine)

    def flush(held: BufferedPushes, params: Tree) -> tuple[AlgorithmUpdate | None, BufferedPushes]:
        if held.total is None:
            return None, held
        taken = [lr / held.pushes * d for d in held.total]
        return AlgorithmUpdate(taken, steps=held.steps), BufferedPushes(held.workers)

    note = NOTE.format(local_steps, buffer or "the workers'")
    return AsyncAlgorithm(
        init, send_current, push, _leave, _join, flush, holds=True, note=note, local_steps=local_steps
    )


def _leave(held: BufferedPushes, mine: State, worker: int) -> BufferedPushes:
    return held._replace(workers=held.workers - 1)


def _join(held: BufferedPushes, worker: int) -> BufferedPushes:
    return held._replace(workers=held.workers + 1)
