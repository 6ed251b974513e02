"""AsyncAlgorithms in a replica: their arithmetic on NumPy, in the process of the script.

A rule that makes workers wait has no place here: rank 0 is the server and a worker at once, so whoever waited for rank
0's next batch would wait for a batch that rank 0 does not begin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fdt.errors import CaptureError, UsageError
from nfdt import algorithm_registry
from nfdt.algorithm import AsyncAlgorithm, Hyper, Push, State, Update
from nfdt.server.algorithm_state import AlgorithmState, Gradient

HELD = "a training loop of the script's own takes rules that apply every push when it comes. Received: {}; use asgd"


def checked(text: str) -> None:
    """Raises UsageError for a rule by which workers wait for each other, or take steps of their own."""
    rule = algorithm_registry.make(text)
    if rule.waits or rule.local_steps is not None:
        raise UsageError(HELD.format(text))


@dataclass(frozen=True)
class Form:
    """What every update of a rule is like. `momentum`: the rule's own; `scales`: it scales the learning rate."""

    momentum: bool
    scales: bool


def form_of(rule: AsyncAlgorithm, workers: int) -> Form:
    """Found by a push of one number."""
    one = [np.ones(1, np.float32)]
    shared, mine = rule.init(one, workers)
    number = np.float32(1)
    _, shared, mine = rule.pull(shared, mine, one, Hyper(0, number, number))
    update, _, _ = rule.push(shared, mine, one, Push(0, one, number, number, number, number, one))
    if update is None or update.steps is not None:
        raise CaptureError(HELD.format("one that holds them back, or has an optimizer of its own"))
    return Form(update.momentum == "rule", not isinstance(update.lr_scale, float) or update.lr_scale != 1.0)


class Arithmetic:
    """A core's applier. `params`: the weights now; `update`: what the optimizer is to be given next; `eta`, `mu`: its
    learning rate and momentum now."""

    def __init__(self, params: list[Any]) -> None:
        self.params = self._before = params
        self.update = Update(params)
        self.eta = self.mu = np.float32(0)

    def init(self, rule: AsyncAlgorithm, workers: int) -> tuple[State, State]:
        return rule.init(self.params, workers)

    def pull(self, rule: AsyncAlgorithm, shared: State, mine: State, worker: int) -> tuple[Any | None, State, State]:
        """Rank 0 is not sent anything: it computes on the weights as they are, which a rule without momentum sends."""
        return rule.pull(shared, mine, self.params, Hyper(worker, self.eta, self.mu if worker else np.float32(0)))

    def push(
        self, rule: AsyncAlgorithm, shared: State, mine: State, worker: int, gradient: Gradient, tau: int
    ) -> tuple[bool, State, State]:
        tau_, samples = np.float32(tau), np.float32(gradient.samples)
        push = Push(worker, gradient.values, tau_, samples, self.eta, self.mu, self._before, gradient.seconds)
        update, shared, mine = rule.push(shared, mine, self.params, push)
        if update is None:
            raise CaptureError(HELD.format("one that holds them back"))
        self.update, self._before = update, self.params
        return True, shared, mine

    def flush(self, rule: AsyncAlgorithm, shared: State) -> tuple[bool, State]:
        return False, shared

    def packed(self, form: Form) -> Any:
        """The update as one vector: the learning rate's scale, the direction, and the fresh gradient of a momentum."""
        fresh = self.update.gradient if self.update.fresh is None else self.update.fresh
        parts: Sequence[Any] = [*self.update.gradient, *(fresh if form.momentum else ())]
        return np.concatenate([np.ravel(self.update.lr_scale), *map(np.ravel, parts)]).astype(np.float32)


class ServerRule:
    """A rule at rank 0: what it makes of the workers' gradients, and what it sends them.

    `mu`: the optimizer's momentum. `alike`: do all workers hold the weights as they are? They do at the beginning and
    when they have met: nobody is late then, and there is no look-ahead.
    """

    def __init__(self, rule: AsyncAlgorithm, workers: int, mu: float) -> None:
        self._rule, self._workers, self._mu = rule, workers, np.float32(mu)
        self.form = form_of(rule, workers)
        self.alike = True
        self.taus: list[int] = []
        self._arithmetic: Arithmetic | None = None
        self._core: AlgorithmState | None = None

    def pushed(self, worker: int, gradients: list[Any], params: list[Any], eta: Any, samples: int) -> Arithmetic:
        """Apply the rule to a worker's gradients; its `update` is what the optimizer is to be given."""
        if self._core is None or self._arithmetic is None:
            self._arithmetic = Arithmetic(params)
            self._core = AlgorithmState(self._rule, self._arithmetic, self._workers)
        self._arithmetic.params, self._arithmetic.eta = params, np.float32(eta)
        if self.alike:
            self._arithmetic.mu = np.float32(0)
            for each in self._core.worker_states:
                self._core.pull(each)
            self._arithmetic.mu, self.alike = self._mu, False
        tau = self._core.push(worker, self._core.worker_states[worker].last_push + 1, Gradient(gradients, samples))
        self._core.take_log()
        self.taus.append(tau or 0)
        return self._arithmetic

    def pulled(self, worker: int, params: list[Any]) -> list[Any]:
        """Return what `worker` is sent of `params`."""
        assert self._core is not None and self._arithmetic is not None
        self._arithmetic.params = params
        sent = self._core.pull(worker)
        if sent is None:
            raise CaptureError(HELD.format("one that makes a worker wait"))
        return list(sent)
