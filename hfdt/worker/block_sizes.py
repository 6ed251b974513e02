"""How large a batch's blocks are where workers are not equally fast (hfdt/worker/blocks.py).

Worker k computes every block of which it is an owner; a step lasts as long as the slowest does. So sizes are wanted
that make the largest of load_k / speed_k as small as can be: a linear program, or a game between blocks and workers,
solved to some 3 % by multiplicative weights (Arora, Hazan and Kale 2012, section 3.2).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ROUNDS = 4000
RATE = 0.05
PARTS = 1 << 20  # sizes are whole numbers of the batch's parts, equal on every rank


def block_sizes(owners: Sequence[tuple[int, ...]], speeds: Sequence[float]) -> list[int]:
    """Of each block, in parts of PARTS. `speeds` above 0, of any unit."""
    speed = np.asarray(speeds, float) / np.sum(speeds)
    does = np.zeros([len(speed), len(owners)])
    for block, workers in enumerate(owners):
        does[list(workers), block] = 1 / speed[list(workers)]
    does /= does.max()
    total, weights = np.zeros(len(owners)), np.full(len(owners), 1 / len(owners))
    slow = np.full(len(speed), 1 / len(speed))
    for _ in range(ROUNDS):
        # Each side answers the other's last move twice (Rakhlin and Sridharan 2013), which closes in much faster.
        next_slow = _moved(slow, RATE * (does @ weights))
        next_weights = _moved(weights, -RATE * (slow @ does))
        slow, weights = _moved(slow, RATE * (does @ next_weights)), _moved(weights, -RATE * (next_slow @ does))
        total += weights
    ends = np.rint(np.cumsum(total) / total.sum() * PARTS).astype(int)
    return [int(size) for size in np.diff(ends, prepend=0)]


def loads(owners: Sequence[tuple[int, ...]], sizes: Sequence[int], workers: int) -> list[float]:
    """The part of a batch that each worker computes."""
    return [
        sum(size for block, size in zip(owners, sizes, strict=True) if k in block) / sum(sizes) for k in range(workers)
    ]


def _moved(mixed: npt.NDArray[np.float64], by: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    moved = mixed * np.exp(by - by.max())
    normed: npt.NDArray[np.float64] = moved / moved.sum()
    return normed
