"""Conjugate gradients (Hestenes and Stiefel, 1952), which minimise a quadratic without its matrix.

They need a LocalObjective's gradient, and products of its Hessian with a direction.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hfdt.algorithm import LocalObjective, LocalProblem, Tree

TOLERANCE = 1e-6  # of the relative residual: the rounding error of single precision
MOST = 200  # iterations


def minimise(shard: LocalObjective, task: LocalProblem) -> Tree:
    """Minimise O_i(w) - linear . w + mu/2 |w - w0|^2.

    Args:
        shard: The rank's objective O_i at w0.
        task: `linear` and `mu`.

    Returns:
        d, one array for each parameter, so that w0 + d is the minimum: (H_i + mu) d = linear - grad O_i(w0).
    """
    residual = [c - g for c, g in zip(task.linear, shard.gradient(), strict=True)]
    d = [0.0 * r for r in residual]
    direction, square = residual, dot(residual, residual)
    stop = TOLERANCE**2 * square
    for _ in range(MOST):
        if square <= stop:
            break
        image = [h + task.mu * p for h, p in zip(shard.curvature(direction), direction, strict=True)]
        bend = dot(direction, image)
        if bend <= 0:  # not a quadratic with a minimum, or only rounding errors are left
            break
        length = square / bend
        d = [a + length * p for a, p in zip(d, direction, strict=True)]
        residual = [r - length * q for r, q in zip(residual, image, strict=True)]
        square, before = dot(residual, residual), square
        direction = [r + square / before * p for r, p in zip(residual, direction, strict=True)]
    return d


def dot(left: Sequence[Any], right: Sequence[Any]) -> float:
    """Return the inner product of two lists of arrays, in float64."""
    pairs = zip(left, right, strict=True)
    return float(sum(np.vdot(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs))


def norm(tree: Sequence[Any]) -> float:
    """Return the Euclidean norm of a list of arrays, in float64."""
    return float(np.sqrt(dot(tree, tree)))
