"""A quadratic's minimiser by conjugate gradients (Hestenes and Stiefel, 1952), which needs no matrix: a
LocalObjective's
gradient and its Hessian times a direction."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hfdt.algorithm import LocalObjective, LocalProblem, Tree

TOLERANCE = 1e-6  # of the residual, relative: what single precision leaves of it
MOST = 200  # directions


def minimise(shard: LocalObjective, task: LocalProblem) -> Tree:
    """d, where O_i(w) - linear . w + mu/2 |w - w0|^2 is least at w0 + d: (H_i + mu) d = linear - grad O_i(w0)."""
    residual = [c - g for c, g in zip(task.linear, shard.gradient(), strict=True)]
    d = [0.0 * r for r in residual]
    direction, square = residual, dot(residual, residual)
    stop = TOLERANCE**2 * square
    for _ in range(MOST):
        if square <= stop:
            break
        image = [h + task.mu * p for h, p in zip(shard.curvature(direction), direction, strict=True)]
        bend = dot(direction, image)
        if bend <= 0:  # no quadratic with a least point, or nothing but rounding is left
            break
        length = square / bend
        d = [a + length * p for a, p in zip(d, direction, strict=True)]
        residual = [r - length * q for r, q in zip(residual, image, strict=True)]
        square, before = dot(residual, residual), square
        direction = [r + square / before * p for r, p in zip(residual, direction, strict=True)]
    return d


def dot(left: Sequence[Any], right: Sequence[Any]) -> float:
    pairs = zip(left, right, strict=True)
    return float(sum(np.vdot(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs))


def norm(tree: Sequence[Any]) -> float:
    return float(np.sqrt(dot(tree, tree)))
