"""The applier of a replica script: the algorithm's arithmetic on NumPy, in the process of the script.

Algorithms that make workers wait are refused. Rank 0 is server and worker at once: a worker that waited for rank 0's
next batch would wait for a batch that rank 0 does not start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fdt.errors import CaptureError, UsageError
from fdt.typing import Vector
from nfdt import algorithms
from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State
from nfdt.options import PLAIN
from nfdt.server.algorithm_state import AlgorithmState
from nfdt.transport import WorkerGradient

HELD = f"a replicated script needs an algorithm that applies each gradient when it arrives. Received: {{}}; use {PLAIN}"


def checked(text: str) -> None:
    """Check the algorithm `text`. Raises UsageError if it does not apply each gradient when it arrives."""
    if not algorithms.make(text).immediate:
        raise UsageError(HELD.format(text))


@dataclass(frozen=True)
class Form:
    """Properties of all updates of an algorithm.

    `momentum`: it has its own. `scales`: it scales the learning rate. `passes_on`: with one worker, gradients
    reach the optimizer as they are.
    """

    momentum: bool
    scales: bool
    passes_on: bool = False


def form_of(rule: AsyncAlgorithm, workers: int) -> Form:
    """Return the form of an algorithm, found by one push of one number."""
    one = [np.ones(1, np.float32)]
    shared, mine = rule.init(one, workers)
    number = np.float32(1)
    _, shared, mine = rule.pull(shared, mine, one, Hyper(0, number, number))
    update, _, _ = rule.push(shared, mine, one, Push(0, one, number, number, number, number, one))
    if update is None or update.steps is not None:
        raise CaptureError(HELD.format("one that applies pushes later, or has an optimizer of its own"))
    momentum = update.momentum == "algorithm"
    scales = not isinstance(update.lr_scale, float) or update.lr_scale != 1.0
    passes_on = workers == 1 and not (momentum or scales) and update.gradient[0] is one[0]
    return Form(momentum, scales, passes_on)


class Arithmetic:
    """An applier on NumPy arrays.

    Attributes:
        params: The current weights.
        update: The last update of the algorithm, for the script's optimizer.
        eta: The optimizer's current learning rate.
        mu: The optimizer's current momentum.
    """

    def __init__(self, params: list[Any]) -> None:
        self.params = self._before = params
        self.update = AlgorithmUpdate(params)
        self.eta = self.mu = np.float32(0)

    def read(self, params: list[Any], eta: Any = None, mu: Any = None) -> None:
        """Take the current weights, and the rate and momentum if given."""
        self.params = params
        self.eta, self.mu = self.eta if eta is None else np.float32(eta), self.mu if mu is None else np.float32(mu)

    def init(self, rule: AsyncAlgorithm, workers: int) -> tuple[State, State]:
        return rule.init(self.params, workers)

    def pull(self, rule: AsyncAlgorithm, shared: State, mine: State, worker: int) -> tuple[Any | None, State, State]:
        """Return (weights to send, shared, mine).

        Rank 0 receives nothing: it computes on the current weights, which are what an algorithm without momentum sends.
        """
        return rule.pull(shared, mine, self.params, Hyper(worker, self.eta, self.mu if worker else np.float32(0)))

    def push(
        self, rule: AsyncAlgorithm, shared: State, mine: State, worker: int, gradient: WorkerGradient, tau: int
    ) -> tuple[bool, State, State]:
        tau_, samples = np.float32(tau), np.float32(gradient.samples)
        push = Push(worker, list(gradient.gradient), tau_, samples, self.eta, self.mu, self._before, gradient.seconds)
        update, shared, mine = rule.push(shared, mine, self.params, push)
        if update is None:
            raise CaptureError(HELD.format("one that applies pushes later"))
        self.update, self._before = update, self.params
        return True, shared, mine

    def flush(self, rule: AsyncAlgorithm, shared: State) -> tuple[bool, State]:
        return False, shared

    def packed(self, form: Form) -> Vector:
        """Return the update as one float32 vector: scale of the rate, direction, and fresh gradient if needed."""
        fresh = self.update.gradient if self.update.fresh is None else self.update.fresh
        parts: Sequence[Any] = [*self.update.gradient, *(fresh if form.momentum else ())]
        vector: Vector = np.concatenate([np.ravel(self.update.lr_scale), *map(np.ravel, parts)]).astype(np.float32)
        return vector


class ServerAlgorithm:
    """An algorithm at rank 0: it turns the workers' gradients into updates, and weights into pulls.

    Args:
        rule: The algorithm.
        workers: Number of workers.
        mu: The optimizer's momentum.

    """

    def __init__(self, rule: AsyncAlgorithm, workers: int, mu: float) -> None:
        self._rule, self._workers, self._mu = rule, workers, np.float32(mu)
        self.form = form_of(rule, workers)
        self._synchronised = True  # no gradient is stale, and the algorithm does not look ahead
        self.taus: list[int] = []
        self._arithmetic: Arithmetic | None = None
        self._core: AlgorithmState | None = None

    def synchronised(self) -> None:
        """Note that all workers have the current weights, as at the start."""
        self._synchronised = True

    def pushed(self, worker: int, gradients: list[Any], params: list[Any], eta: Any, samples: int) -> Arithmetic:
        """Pass a worker's gradients to the algorithm; `update` of the result goes to the optimizer."""
        if self._core is None or self._arithmetic is None:
            self._arithmetic = Arithmetic(params)
            self._core = AlgorithmState(self._rule, self._arithmetic, self._workers)
        self._arithmetic.read(params, eta)
        if self._synchronised:
            self._arithmetic.read(params, mu=0)
            for each in self._core.worker_states:
                self._core.pull(each)
            self._arithmetic.read(params, mu=self._mu)
            self._synchronised = False
        number = self._core.worker_states[worker].last_push + 1
        tau = self._core.push(worker, number, WorkerGradient(gradients, samples))
        self._core.take_log()
        self.taus.append(tau or 0)
        return self._arithmetic

    def pulled(self, worker: int, params: list[Any]) -> list[Any]:
        """Return the weights to send to `worker` for the current weights `params`."""
        assert self._core is not None and self._arithmetic is not None
        self._arithmetic.read(params)
        sent = self._core.pull(worker)
        if sent is None:
            raise CaptureError(HELD.format("one that makes a worker wait"))
        return list(sent)
