"""The applier for tests and simulated tables: NumPy arrays and SGD."""

from typing import Any

import numpy as np

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State
from nfdt.transport import WorkerGradient
from nfdt.tree import Array, zip_map


class PlainApplier:
    """SGD as in Keras: m <- mu m - eta * lr_scale * update; w <- w + m. Weights are never written in place."""

    def __init__(self, params: list[Array], eta: float = 0.1, mu: float = 0.0) -> None:
        self.params = self._before = [np.asarray(p) for p in params]
        self.eta, self.mu = np.asarray(eta), np.asarray(mu)
        self._momentum = [np.zeros_like(p) for p in self.params]

    def init(self, rule: AsyncAlgorithm, workers: int) -> tuple[State, State]:
        if rule.optimizer is not None:
            raise ValueError("the NumPy applier has no Keras optimizer; use ModelApplier")
        return rule.init(self.params, workers)

    def pull(self, rule: AsyncAlgorithm, shared: State, mine: State, worker: int) -> tuple[Any | None, State, State]:
        return rule.pull(shared, mine, self.params, Hyper(worker, self.eta, self.mu))

    def push(
        self, rule: AsyncAlgorithm, shared: State, mine: State, worker: int, gradient: WorkerGradient, tau: int
    ) -> tuple[bool, State, State]:
        push = Push(
            worker,
            list(gradient.gradient),
            np.asarray(float(tau)),
            np.asarray(float(gradient.samples)),
            self.eta,
            self.mu,
            self._before,
            gradient.seconds,
            len(gradient.batches),
        )
        update, shared, mine = rule.push(shared, mine, self.params, push)
        return self._apply(update), shared, mine

    def flush(self, rule: AsyncAlgorithm, shared: State) -> tuple[bool, State]:
        update, shared = rule.flush(shared, self.params)
        return self._apply(update), shared

    def _apply(self, update: AlgorithmUpdate | None) -> bool:
        if update is None:
            return False
        self._before = self.params
        if update.steps is not None:
            self.params = zip_map(lambda w, u: w - u, self.params, update.gradient)
            return True
        step = self.eta * update.lr_scale
        mu = self.mu if update.momentum == "captured" else 0.0
        self._momentum = zip_map(lambda m, u: mu * m - step * u, self._momentum, update.gradient)
        self.params = zip_map(lambda w, m: w + m, self.params, self._momentum)
        return True
