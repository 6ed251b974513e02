"""Ridge regression in parts, and the driver of HFDT's algorithms of rounds over parts whose minimum is exact."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from hfdt import algorithms

WIDTH, PENALTY = 500, 0.005


class Quadratic:
    """The objective O_i(w) = |X w - y|^2 / n + PENALTY |w|^2 (a LocalObjective), with its exact minimum."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.rows, self.w0 = len(x), np.zeros(WIDTH)
        self.hessian = 2 * x.T @ x / len(x) + 2 * PENALTY * np.eye(WIDTH)
        self.b = 2 * x.T @ y / len(x)

    @cached_property
    def spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues and eigenvectors of the Hessian, which solve it for every mu."""
        found = np.linalg.eigh(self.hessian)
        return found[0], found[1]

    def gradient(self) -> list[np.ndarray]:
        return [self.hessian @ self.w0 - self.b]

    def curvature(self, direction: Sequence[Any]) -> list[np.ndarray]:
        return [self.hessian @ np.asarray(direction[0])]

    def minimum(self, task: Any) -> list[np.ndarray]:
        """Return the least point of O_i(w) - linear . w + mu/2 |w - w0|^2."""
        values, vectors = self.spectrum
        target = self.b + np.asarray(task.linear[0]) + task.mu * self.w0
        return [vectors @ (vectors.T @ target / (values + task.mu))]

    def gap(self, w: Any) -> float:
        """f(w) - f*, relative to that of w = 0: (w - w*) . H (w - w*) / 2, which does not cancel."""
        values, vectors = self.spectrum
        best = vectors @ (vectors.T @ self.b / values)
        away = np.asarray(w) - best
        return float(away @ self.hessian @ away / (best @ self.hessian @ best))


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(rows)
    x = draw.normal(size=(rows, WIDTH))
    return x, x @ np.ones(WIDTH) + draw.normal(size=rows)


@cache
def problem(rows: int, parts: int) -> list[Quadratic]:
    """Return the parts of a problem; one part is the whole."""
    x, y = data(rows)
    return [Quadratic(a, b) for a, b in zip(np.split(x, parts), np.split(y, parts), strict=True)]


class Group:
    """The ReduceGroup of equal parts. `add` adds a vector over the workers."""

    def __init__(self, size: int, add: Callable[[np.ndarray], np.ndarray]) -> None:
        self.size, self._add, self.averages = size, add, 0

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the mean of each tensor over the workers, by one addition of them all."""
        self.averages += 1
        arrays = [np.asarray(t) for t in tensors]
        total = self._add(np.concatenate([a.ravel() for a in arrays])) / self.size
        ends = np.cumsum([a.size for a in arrays])[:-1]
        return [part.reshape(a.shape) for part, a in zip(np.split(total, ends), arrays, strict=True)]


def in_rounds(text: str, shard: Any, group: Group, rounds: int, w: Any, after: Callable[[Any, float], None]) -> None:
    """Run an algorithm of rounds from `w` on this worker's part; call `after(w, mu)` after each round."""
    rule, params = algorithms.make(text), [w]
    state = rule.init(params)
    for _ in range(rounds):
        shard.w0 = np.asarray(params[0])
        task, state = rule.begin(state, params, shard, group)
        params, state = rule.end(state, params, shard.minimum(task), group)
        after(np.asarray(params[0]), task.mu)
