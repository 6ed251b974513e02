"""The rule's state and the order in which it is called: what every shard holds, and what a follower replays.

No I/O, no clock, no TensorFlow: arithmetic is the applier's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from nfdt.algorithm import AsyncAlgorithm, State


@dataclass(frozen=True)
class Gradient:
    """What a worker pushes, as the applier takes it. Opaque to core and policy but for the counts."""

    values: Any  # in the applier's own form
    samples: int
    seconds: float = 0.0
    finite: bool = True
    batches: int = 1


class Applier(Protocol):
    """Holds the variables and does the rule's arithmetic on them."""

    def init(self, rule: AsyncAlgorithm, workers: int) -> tuple[State, State]: ...

    def pull(self, rule: AsyncAlgorithm, shared: State, mine: State, worker: int) -> tuple[Any | None, State, State]:
        """What to send (its own form), or None: wait."""
        ...

    def push(
        self, rule: AsyncAlgorithm, shared: State, mine: State, worker: int, gradient: Gradient, tau: int
    ) -> tuple[bool, State, State]:
        """True when the variables were updated."""
        ...

    def flush(self, rule: AsyncAlgorithm, shared: State) -> tuple[bool, State]: ...


@dataclass(frozen=True)
class Logged:
    """One call of the rule. Replayed in order by the shards that follow, it gives the same decisions there."""

    kind: Literal["pull", "push", "leave", "join", "flush"]
    worker: int = -1
    push: int = 0
    tau: int = 0
    samples: int = 0
    seconds: float = 0.0


@dataclass
class WorkerState:
    """What the server remembers of one worker. `version`: of the weights it pulled last."""

    mine: State
    version: int = 0
    last_push: int = 0


@dataclass
class AlgorithmState:
    """`version` counts updates. `log` is what happened since it was last taken."""

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
        """What to send to `worker`, or None when the rule makes it wait."""
        slot = self.worker_states[worker]
        self.log.append(Logged("pull", worker))
        self.pulls += 1
        sent, self.shared, slot.mine = self.applier.pull(self.rule, self.shared, slot.mine, worker)
        if sent is not None:
            slot.version = self.version
        return sent

    def push(self, worker: int, push: int, gradient: Gradient) -> int | None:
        """Give the rule a gradient once. Returns its tau, None when this push came before (a retry)."""
        slot = self.worker_states[worker]
        if push <= slot.last_push:
            return None
        tau = self.version - slot.version
        self.log.append(Logged("push", worker, push, tau, gradient.samples, gradient.seconds))
        applied, self.shared, slot.mine = self.applier.push(self.rule, self.shared, slot.mine, worker, gradient, tau)
        slot.last_push = push
        self.version += applied
        return tau

    def skip(self, worker: int, push: int) -> bool:
        """Note a push that the rule is not to see. False when it came before."""
        slot = self.worker_states[worker]
        fresh, slot.last_push = push > slot.last_push, max(push, slot.last_push)
        return fresh

    def leave(self, worker: int) -> None:
        self.log.append(Logged("leave", worker))
        self.shared = self.rule.leave(self.shared, self.worker_states.pop(worker).mine, worker)

    def join(self, worker: int) -> None:
        """`worker` begins, or begins anew: what it pushes next is its first push."""
        self.log.append(Logged("join", worker))
        _, mine = self.applier.init(self.rule, self.workers)
        self.worker_states[worker] = WorkerState(mine, self.version)
        self.shared = self.rule.join(self.shared, worker)

    def flush(self) -> bool:
        """Have the rule apply what it holds. True when it did."""
        self.log.append(Logged("flush"))
        applied, self.shared = self.applier.flush(self.rule, self.shared)
        self.version += applied
        return applied

    def take_log(self) -> Sequence[Logged]:
        taken, self.log = self.log, []
        return taken
