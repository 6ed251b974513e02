"""The trainings of tournament.py, with the engines' own algorithms on NumPy arrays.

NFDT's gradients depend on when workers push, so every cluster is a training of its own: NFDT's scheduler on the links
of the cluster (frontends/advise/pushes.py). HFDT's numbers depend on the number of ranks alone, so a trajectory (the
accuracy by batches) is trained once, and hfdt/cost/on_cluster.py gives the times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from tournament_tasks import TASKS, load, nbytes_of, network

from fdt.network import Cluster, NodeGroup
from fdt.network.reading import read_cluster
from frontends.advise.pushes import PushRun
from hfdt import algorithms
from hfdt.algorithm import RoundAlgorithm
from hfdt.collectives.simulated import SimulatedWorld, on_simulated
from nfdt.transport import WorkerGradient
from tests.single.numpy_applier import PlainApplier

PER_WORKER = " --batch per-worker"
CHANCE, STUCK = 0.15, 5  # a training with no better accuracy in so many tests in a row has diverged, and ends
Curve = list[tuple[int, float, float]]  # batches of the script, simulated seconds, accuracy


@dataclass(frozen=True)
class Run:
    """One cell of the tournament. `algorithm`: as after --algorithm, with PER_WORKER where that is given too."""

    engine: str
    algorithm: str
    task: str
    cluster: str
    seed: int


class Diverged(Exception):
    """Raised where a training stays at chance."""


@cache
def cluster_of(file: Any, task: str) -> Cluster:
    """Return the cluster of a file, with the step time of a task."""
    return replace(read_cluster(file).with_workers(None), step_s=TASKS[task].step_s)


@cache
def orders(task: str, seed: int, epoch: int) -> Any:
    """Return the order of the rows in an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(len(load(task)[0]))


def rows_of(task: str, seed: int, epoch: int, batch: int, size: int) -> tuple[Any, Any]:
    """Return batch number `batch` of an epoch, of `size` rows."""
    rows = orders(task, seed, epoch)[batch * size : (batch + 1) * size]
    return load(task)[0][rows], load(task)[1][rows]


class Tests:
    """The accuracy by batches. Raises Diverged where a training stays at chance."""

    def __init__(self, task: str) -> None:
        self.task, self.curve = task, list[tuple[int, float, float]]()
        self._data = load(task)[2:]

    def see(self, done: int, weights: Sequence[Any], now_s: float = 0.0, *, last: bool = False) -> None:
        """Test if another `every` batches are done, or at the end."""
        every = TASKS[self.task].every
        if not last and done // every <= (self.curve[-1][0] if self.curve else 0) // every:
            return
        with np.errstate(all="ignore"):
            accuracy = network(self.task).accuracy([np.asarray(w, np.float32) for w in weights], *self._data)
        self.curve.append((done, round(now_s, 4), round(accuracy, 4)))
        if len(self.curve) > 2 * STUCK and all(a < CHANCE for *_, a in self.curve[-STUCK:]):
            raise Diverged


# -- NFDT ----------------------------------------------------------------------------------------------------------
class Training(PushRun):
    """Workers whose gradients are real."""

    def __init__(self, run: Run, cluster: Cluster) -> None:
        task, net = TASKS[run.task], network(run.task)
        self.run, self._net, self._task, self.pushes, self.tau = run, net, task, 0, 0
        self._own = PlainApplier(net.start(run.seed), np.float32(task.rate), np.float32(task.momentum))  # type: ignore[arg-type]
        self.tests, self._slots = Tests(run.task), dict[int, list[Any]]()
        super().__init__(cluster, run.algorithm, task.steps, nbytes_of(run.task), run.seed, self._own)

    def gradient(self, worker: int, epoch: int, batches: Sequence[int], weights: Any, seconds: float) -> Any:
        """Return the gradient of one batch, whole or along its parts, or the change of the weights in several."""
        weights = [np.asarray(w, np.float32) for w in weights]
        rows = [rows_of(self.run.task, self.run.seed, epoch, b, self._task.batch) for b in batches]
        samples = sum(len(y) for _, y in rows)
        if self.rule.micro_steps > 1:
            found = self._along_parts(weights, *rows[0])
        elif self.rule.local_steps is None:
            found = self._net.gradient(weights, *rows[0])
        else:
            momentum = self._slots.get(worker, [np.zeros_like(w) for w in weights])
            reached, self._slots[worker] = stepped(self.run.task, weights, momentum, rows)
            found = [w - r for w, r in zip(weights, reached, strict=True)]
        return WorkerGradient(found, samples, seconds, batches=batches)

    def _along_parts(self, weights: list[Any], x: Any, y: Any) -> list[Any]:
        """Return the mean gradient along micro-steps of SGD over parts of a batch (nfdt/worker/step.py)."""
        parts, mean = min(self.rule.micro_steps, len(y)), [np.zeros_like(w) for w in weights]
        size = np.float32(self._task.rate / ((1 - self._task.momentum) * parts))
        for xs, ys in zip(np.array_split(x, parts), np.array_split(y, parts), strict=True):
            found, part = self._net.gradient(weights, xs, ys), np.float32(len(ys) / len(y))
            mean = [m + part * g for m, g in zip(mean, found, strict=True)]
            weights = [w - size * g for w, g in zip(weights, found, strict=True)]
        return mean

    def pushed(self, batches: int, tau: int) -> None:
        """Test after a push."""
        self.pushes, self.tau = self.pushes + 1, self.tau + tau
        self.tests.see(batches, self._own.params, self.now_s)

    def result(self) -> dict[str, Any]:
        """Train; return the curve, the bytes and the mean staleness."""
        with np.errstate(all="ignore"):
            try:
                self.seconds(self._task.epochs)
                self.tests.see(self._task.steps * self._task.epochs, self._own.params, self.now_s, last=True)
            except Diverged:
                pass
        nbytes = 2 * self.pushes * nbytes_of(self.run.task)
        return {"curve": self.tests.curve, "bytes": nbytes, "tau": round(self.tau / max(1, self.pushes), 2)}


# -- HFDT ----------------------------------------------------------------------------------------------------------
def stepped(
    task: str, weights: list[Any], momentum: list[Any], rows: Sequence[Any], linear: Any = None, mu: float = 0.0
) -> tuple[list[Any], list[Any]]:
    """Return weights and momentum after steps of SGD; `linear` and `mu`: of a LocalProblem from `weights`."""
    of, first = TASKS[task], weights
    for x, y in rows:
        found = network(task).gradient(weights, x, y)
        if linear is not None:
            found = [g - a + mu * (w - w0) for g, a, w, w0 in zip(found, linear, weights, first, strict=True)]
        momentum = [of.momentum * m - of.rate * g for m, g in zip(momentum, found, strict=True)]
        weights = [w + m for w, m in zip(weights, momentum, strict=True)]
    return weights, momentum


def trajectory(task: str, algorithm: str, n: int, seed: int) -> list[tuple[int, float]]:
    """Return (batches of the script, accuracy) of HFDT's `algorithm` on `n` ranks; times are on_cluster.py's."""
    name, per_worker, _ = algorithm.partition(PER_WORKER)
    made, tests, whole = algorithms.make(name), Tests(task), n if per_worker else 1
    try:
        if isinstance(made, RoundAlgorithm):
            world = SimulatedWorld(Cluster((NodeGroup("rank", n),)))
            on_simulated(world, lambda comm: OneRank(task, made, comm, seed, tests, whole).train())
        else:
            _steps(task, whole, seed, tests)
    except Diverged:
        pass
    return [(done, accuracy) for done, _, accuracy in tests.curve]


def _steps(task: str, whole: int, seed: int, tests: Tests) -> None:
    of, weights = TASKS[task], network(task).start(seed)
    momentum = [np.zeros_like(w) for w in weights]
    for epoch in range(of.epochs):
        for i in range(-(-of.steps // whole)):
            batch = rows_of(task, seed, epoch, i, whole * of.batch)
            weights, momentum = stepped(task, weights, momentum, [batch])
            done = min(epoch * of.steps + (i + 1) * whole, (epoch + 1) * of.steps)
            tests.see(done, weights, last=done == of.steps * of.epochs)


class OneRank:
    """A rank of an algorithm with rounds (hfdt/worker/rounds.py): its ReduceGroup and its LocalObjective."""

    def __init__(self, task: str, rule: Any, comm: Any, seed: int, tests: Tests, whole: int) -> None:
        self._task, self._rule, self._comm, self._seed, self._tests = task, rule, comm, seed, tests
        self.size, self.rank, self._whole = comm.size, comm.rank, whole
        self._weights = network(task).start(seed)
        self._momentum = [np.zeros_like(w) for w in self._weights]
        self._state, self._local = rule.init(self._weights), list[Any]()

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Average over ranks, all of which have as many samples."""
        flat = np.concatenate([np.ravel(t) for t in tensors]) / np.float32(self.size)
        total = self._comm.sum_vector(flat.astype(np.float32), "round")
        ends = np.cumsum([np.size(t) for t in tensors])[:-1]
        return [part.reshape(np.shape(t)) for part, t in zip(np.split(total, ends), tensors, strict=True)]

    def gradient(self) -> list[Any]:
        """Return the mean gradient over this rank's batches of the round."""
        found = [network(self._task).gradient(self._weights, x, y) for x, y in self._local]
        return [sum(parts) / len(found) for parts in zip(*found, strict=True)]

    def train(self) -> None:
        """Train. Rank 0 tests at the ends of rounds."""
        of, size = TASKS[self._task], self._whole
        for epoch in range(of.epochs):
            batches = [rows_of(self._task, self._seed, epoch, i, size * of.batch) for i in range(-(-of.steps // size))]
            mine = [[np.array_split(a, self.size)[self.rank] for a in batch] for batch in batches]
            local = [(x, y) for x, y in mine if len(x)]
            count = self._rule.batches or len(local)
            for first in range(0, len(local), count):
                self._local = local[first : first + count]
                self._round()
                done = min(epoch * of.steps + (first + count) * size, (epoch + 1) * of.steps)
                if self.rank == 0:
                    self._tests.see(done, self._weights, last=done == of.steps * of.epochs)

    def _round(self) -> None:
        w0, linear, mu = self._weights, None, 0.0
        if self._rule.begin is not None:
            problem, self._state = self._rule.begin(self._state, w0, self, self)
            linear, mu = problem.linear, problem.mu
        batches = self._local * self._rule.passes
        mine, self._momentum = stepped(self._task, w0, self._momentum, batches, linear, mu)
        self._weights, self._state = self._rule.end(self._state, w0, mine, self)
        if self._rule.slots:
            self._momentum = self.mean(self._momentum)
