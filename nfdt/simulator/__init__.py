"""Training on a simulated clock: scheduler, algorithms, applier and step of `nfdt run`, with real gradients.

Only the clock, the links and the workers' speeds are simulated. workers.py has the workers. session.py is one job,
driven by the same commands as a worker that hosts its server. process.py is its process; nfdt/engine starts it.

Here is the record of a simulation: the curve, the staleness, the bytes, and the wall time by purpose. It is one JSON
file in the run's directory, RECORD, written when a fit ends:

    {"workers": 8,
     "fits": [{"algorithm", "epochs": [...], "points": [...], "staleness": {tau: pushes}, "links": {name: bytes}}, ...]}

A point is the state after a push. `pushes` are gradients that the algorithm received, of one batch or of several local
steps each. `pushes`, `samples` and `simulated_s` count from the start of the fit. `logs` are Keras's running metrics
since the start of the epoch, `epoch_samples` samples ago.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # they import NumPy, which the command line does not need
    from nfdt.algorithm import AsyncAlgorithm, State
    from nfdt.server.algorithm_state import Applier
    from nfdt.transport import WorkerGradient

RECORD = "simulation.json"


@dataclass
class WallTimes:
    """Real seconds. The time of neither gradients nor updates is the simulator's own."""

    total_s: float = 0.0
    gradient_s: float = 0.0
    update_s: float = 0.0

    def reset(self) -> None:
        self.total_s = self.gradient_s = self.update_s = 0.0

    def counted(self, what: str) -> "Counted":
        """Return a context that adds its time to `what`."""
        return Counted(self, what)


class Counted:
    """A context manager with little overhead: it encloses every gradient and every update."""

    __slots__ = ("_start", "_walls", "_what")

    def __init__(self, walls: WallTimes, what: str) -> None:
        self._walls, self._what = walls, what

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        setattr(self._walls, self._what, getattr(self._walls, self._what) + time.perf_counter() - self._start)


@dataclass(frozen=True)
class Point:
    """A point of the training curve."""

    epoch: int
    pushes: int
    samples: int
    epoch_samples: int
    simulated_s: float
    logs: dict[str, float]


@dataclass(frozen=True)
class EpochRecord:
    """Counts and times of one epoch. `steps`: batches."""

    epoch: int
    steps: int
    pushes: int
    samples: int
    simulated_s: float
    bytes_sent: int
    bytes_received: int
    total_s: float
    gradient_s: float
    update_s: float


@dataclass
class FitRecord:
    """Record of one fit. `links`: bytes by direction of each link."""

    algorithm: str
    epochs: list[EpochRecord] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)
    links: dict[str, int] = field(default_factory=dict)


@dataclass
class SimulationRecord:
    """Record of all fits of one run."""

    workers: int
    fits: list[FitRecord] = field(default_factory=list)

    def write(self, directory: Path) -> None:
        """Write the record to RECORD in `directory`."""
        (directory / RECORD).write_text(json.dumps(asdict(self)))


@dataclass
class TimedApplier:
    """An applier (nfdt/server/algorithm_state.py) that measures time and calls `on_exchange(kind, worker, tau)`."""

    inner: "Applier"
    walls: WallTimes
    on_exchange: Callable[[str, int, int], None]

    def init(self, rule: "AsyncAlgorithm", workers: int) -> "tuple[State, State]":
        return self.inner.init(rule, workers)

    def pull(
        self, rule: "AsyncAlgorithm", shared: "State", mine: "State", worker: int
    ) -> "tuple[Any | None, State, State]":
        with self.walls.counted("update_s"):
            result = self.inner.pull(rule, shared, mine, worker)
        self.on_exchange("wait" if result[0] is None else "pull", worker, 0)
        return result

    def push(
        self, rule: "AsyncAlgorithm", shared: "State", mine: "State", worker: int, gradient: "WorkerGradient", tau: int
    ) -> "tuple[bool, State, State]":
        with self.walls.counted("update_s"):
            result = self.inner.push(rule, shared, mine, worker, gradient, tau)
        self.on_exchange("push" if result[0] else "hold", worker, tau)
        return result

    def flush(self, rule: "AsyncAlgorithm", shared: "State") -> "tuple[bool, State]":
        with self.walls.counted("update_s"):
            result = self.inner.flush(rule, shared)
        self.on_exchange("flush", -1, 0)
        return result
