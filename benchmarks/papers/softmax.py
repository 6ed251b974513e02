"""Softmax regression on MNIST as parts of a convex problem, for D6. Weights are a vector of 785 x 10."""

from collections.abc import Sequence
from typing import Any

import numpy as np

CLASSES, PENALTY = 10, 1e-3
Vector = Any  # float64


class Softmax:
    """The objective O_i(w) = mean cross-entropy + PENALTY/2 |w|^2 (a LocalObjective), minimized by L-BFGS."""

    def __init__(self, x: Any, y: Any) -> None:
        flat = x.reshape(len(x), -1)
        self.x = np.concatenate([flat, np.ones((len(x), 1), flat.dtype)], axis=1).astype(np.float32)
        self.y, self.w0 = y, np.zeros(self.x.shape[1] * CLASSES)

    def value(self, w: Vector) -> tuple[float, Vector]:
        """Return O_i and its gradient."""
        logits = self._times(w)
        logits -= logits.max(axis=1, keepdims=True)
        p = np.exp(logits)
        total, rows = p.sum(axis=1), np.arange(len(self.y))
        loss = float(np.mean(np.log(total) - logits[rows, self.y], dtype=np.float64))
        p /= total[:, None]
        p[rows, self.y] -= 1
        return loss + PENALTY / 2 * float(w @ w), self._mean(p) + PENALTY * w

    def loss(self, w: Vector) -> float:
        """Return the mean cross-entropy alone."""
        return self.value(w)[0] - PENALTY / 2 * float(w @ w)

    def gradient(self) -> list[Vector]:
        return [self.value(self.w0)[1]]

    def curvature(self, direction: Sequence[Any]) -> list[Vector]:
        """Return the Hessian of O_i at w0, times the direction."""
        (v,) = direction
        logits, along = self._times(self.w0), self._times(v)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        return [self._mean(p * (along - (p * along).sum(axis=1, keepdims=True))) + PENALTY * v]

    def _times(self, w: Vector) -> Any:
        return self.x @ w.reshape(-1, CLASSES).astype(np.float32)

    def _mean(self, logits: Any) -> Vector:
        """Return the mean over rows of x times the row of a matrix of rows x classes."""
        return (self.x.T @ logits).astype(np.float64).ravel() / len(self.y)

    def minimum(self, task: Any) -> list[Vector]:
        """Return the least point of O_i(w) - linear . w + mu/2 |w - w0|^2."""
        linear = np.asarray(task.linear[0])

        def shifted(w: Vector) -> tuple[float, Vector]:
            value, gradient = self.value(w)
            away = w - self.w0
            return value - linear @ w + task.mu / 2 * away @ away, gradient - linear + task.mu * away

        return [least(shifted, self.w0)]


def least(value: Any, w: Vector, tolerance: float = 1e-5, most: int = 200) -> Vector:
    """Return the least point of a convex function by L-BFGS. `value(w)` returns it and its gradient."""
    from scipy.optimize import minimize

    found = minimize(value, w, jac=True, method="L-BFGS-B", options={"gtol": tolerance, "maxiter": most, "ftol": 0.0})
    return found.x
