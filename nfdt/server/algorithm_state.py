"""The algorithm's state and the order of its calls: every shard holds it, and a follower replays the calls.

This module has no I/O, no clock and no TensorFlow; the applier does the arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from nfdt.algorithm import AsyncAlgorithm, State
from nfdt.transport import WorkerGradient


class Applier(Protocol):
    """Holds the variables and executes the algorithm's arithmetic on them."""

    def init(self, rule: AsyncAlgorithm, workers: int) -> tuple[State, State]:
        """Return the initial (shared, mine) of `rule` for `workers` workers."""

    def pull(self, rule: AsyncAlgorithm, shared: State, mine: State, worker: int) -> tuple[Any | None, State, State]:
        """Return (message to send, shared, mine). The message is None if the worker must wait."""

    def push(
        self, rule: AsyncAlgorithm, shared: State, mine: State, worker: int, gradient: WorkerGradient, tau: int
    ) -> tuple[bool, State, State]:
        """Return (whether the variables were updated, shared, mine).

        Args:
            rule: The algorithm.
            shared: State that all workers share.
            mine: State of the worker.
            worker: Number of the worker.
            gradient: The pushed gradient.
            tau: Staleness: number of updates since the worker's pull.
        """

    def flush(self, rule: AsyncAlgorithm, shared: State) -> tuple[bool, State]:
        """Return (whether the variables were updated, shared)."""


@dataclass(frozen=True)
class Logged:
    """One call of the algorithm. The other shards replay these calls in order and so make the same decisions."""

    kind: Literal["pull", "push", "leave", "join", "flush"]
    worker: int = -1
    push: int = 0
    tau: int = 0
    samples: int = 0
    seconds: float = 0.0


@dataclass
class WorkerState:
    """State that the server keeps for one worker.

    Attributes:
        version: The version of the weights that the worker pulled last.
        last_push: The number of its last push.
        staleness: The staleness of its last push.
    """

    mine: State
    version: int = 0
    last_push: int = 0
    staleness: int = 0

    def pulled(self, mine: State, version: int | None) -> None:
        """Record a pull; `version`: that of the weights, None where the worker waits."""
        self.mine, self.version = mine, self.version if version is None else version

    def pushed(self, mine: State, push: int, tau: int) -> None:
        """Record a push."""
        self.mine, self.last_push, self.staleness = mine, push, tau

    def skip(self, push: int) -> bool:
        """Record a push that the algorithm does not receive. Return False if it was already recorded."""
        fresh, self.last_push = push > self.last_push, max(push, self.last_push)
        return fresh


@dataclass
class AlgorithmState:
    """The algorithm's shared state and all worker states.

    `version` counts updates. `log` holds the calls since the last `take_log`.
    """

    rule: AsyncAlgorithm
    applier: Applier
    workers: int
    version: int = 0
    pulls: int = 0
    log: list[Logged] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shared, mine = self.applier.init(self.rule, self.workers)
        self.worker_states = {worker: WorkerState(mine) for worker in range(self.workers)}

    def pull(self, worker: int) -> Any | None:
        """Return the message for `worker`, or None if the algorithm makes it wait."""
        slot = self.worker_states[worker]
        self.log.append(Logged("pull", worker))
        self.pulls += 1
        sent, self.shared, mine = self.applier.pull(self.rule, self.shared, slot.mine, worker)
        slot.pulled(mine, None if sent is None else self.version)
        return sent

    def push(self, worker: int, push: int, gradient: WorkerGradient) -> int | None:
        """Pass a gradient to the algorithm. Return its staleness, or None for a push that is already applied."""
        slot = self.worker_states[worker]
        if push <= slot.last_push:
            return None
        tau = self.version - slot.version
        self.log.append(Logged("push", worker, push, tau, gradient.samples, gradient.seconds))
        applied, self.shared, mine = self.applier.push(self.rule, self.shared, slot.mine, worker, gradient, tau)
        slot.pushed(mine, push, tau)
        self.version += applied
        return tau

    def skip(self, worker: int, push: int) -> bool:
        """Record a push that the algorithm must not receive. Return False if it was already recorded."""
        return self.worker_states[worker].skip(push)

    def leave(self, worker: int) -> None:
        """Remove `worker` and its state."""
        self.log.append(Logged("leave", worker))
        self.shared = self.rule.leave(self.shared, self.worker_states.pop(worker).mine, worker)

    def join(self, worker: int) -> None:
        """Add `worker` with an initial state; its next push counts as its first."""
        self.log.append(Logged("join", worker))
        _, mine = self.applier.init(self.rule, self.workers)
        self.worker_states[worker] = WorkerState(mine, self.version)
        self.shared = self.rule.join(self.shared, worker)

    def flush(self) -> bool:
        """Let the algorithm apply the pushes that it holds. Return whether it updated the variables."""
        self.log.append(Logged("flush"))
        applied, self.shared = self.applier.flush(self.rule, self.shared)
        self.version += applied
        return applied

    def restore(self, shared: State, worker_states: dict[int, WorkerState], version: int, pulls: int) -> None:
        """Continue from a snapshot."""
        self.shared, self.worker_states, self.version, self.pulls = shared, worker_states, version, pulls

    def take_log(self) -> Sequence[Logged]:
        """Return the calls since the last `take_log`, and clear them."""
        taken, self.log = self.log, []
        return taken
