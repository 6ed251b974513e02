"""Sizes of a batch's blocks for workers of different speeds (hfdt/worker/blocks.py).

Worker k computes every block of which it is an owner; a step lasts as long as the slowest worker's part. So the sizes
minimise the largest load_k / speed_k. This is a linear program, or a game between blocks and workers, solved to some 3
% by multiplicative weights (Arora, Hazan and Kale 2012, section 3.2).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ROUNDS = 4000
RATE = 0.05
PARTS = 1 << 20  # sizes are whole numbers of these parts of a batch, so that they are equal on every rank


def block_sizes(owners: Sequence[tuple[int, ...]], speeds: Sequence[float]) -> list[int]:
    """Return the size of each block, in units of 1 / PARTS of a batch. `speeds` are above 0, in any unit."""
    speed = np.asarray(speeds, float) / np.sum(speeds)
    does = np.zeros([len(speed), len(owners)])
    for block, workers in enumerate(owners):
        does[list(workers), block] = 1 / speed[list(workers)]
    does /= does.max()
    total, weights = np.zeros(len(owners)), np.full(len(owners), 1 / len(owners))
    slow = np.full(len(speed), 1 / len(speed))
    for _ in range(ROUNDS):
        # Optimistic updates (Rakhlin and Sridharan 2013): a trial step, then the step. They converge much faster.
        next_slow = _moved(slow, RATE * (does @ weights))
        next_weights = _moved(weights, -RATE * (slow @ does))
        slow, weights = _moved(slow, RATE * (does @ next_weights)), _moved(weights, -RATE * (next_slow @ does))
        total += weights
    ends = np.rint(np.cumsum(total) / total.sum() * PARTS).astype(int)
    return [int(size) for size in np.diff(ends, prepend=0)]


def loads(owners: Sequence[tuple[int, ...]], sizes: Sequence[int], workers: int) -> list[float]:
    """Return the part of a batch that each worker computes, in 0..1."""
    return [
        sum(size for block, size in zip(owners, sizes, strict=True) if k in block) / sum(sizes) for k in range(workers)
    ]


def _moved(mixed: npt.NDArray[np.float64], by: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    moved = mixed * np.exp(by - by.max())
    normed: npt.NDArray[np.float64] = moved / moved.sum()
    return normed
