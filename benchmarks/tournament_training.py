"""The trainings of tournament.py: NFDT's in its own simulator; HFDT's steps with the engine's algorithms and exchanges.

Asynchronous gradients depend on when workers push, so NFDT trains anew on every cluster. HFDT's numbers depend on the
number of ranks alone, so a trajectory (the accuracy by batches) is trained once, and a cluster gives the times.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tournament_tasks import TASKS, Tester, fresh, load

from fdt.network import Cluster
from fdt.network.reading import read_cluster

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


@cache
def cluster_of(file: Any, task: str) -> Cluster:
    """Return the cluster of a file, with the step time of a task."""
    return replace(read_cluster(file).with_workers(None), step_s=TASKS[task].step_s)


def batches(task: str, seed: int, epoch: int, size: int) -> Iterator[tuple[Any, Any]]:
    """Return an epoch's batches of `size` rows, in the order of `seed`."""
    x, y, *_ = load(task)
    order = np.random.default_rng([seed, epoch]).permutation(len(x))
    return ((tf.constant(x[rows]), tf.constant(y[rows])) for rows in np.split(order, range(size, len(x), size)))


class Diverged(Exception):
    """Raised where a training stays at chance."""


# -- NFDT ----------------------------------------------------------------------------------------------------------
class Simulator:
    """NFDT's simulator on one task. The compiled gradient is used by all runs."""

    def __init__(self, task: str) -> None:
        from client_shim.capture.data import capture_data
        from client_shim.capture.program import capture_program
        from fdt.blobs import LocalBlobs
        from fdt.job import FitArguments
        from fdt.keras import flavor_of
        from fdt.trainable import build
        from nfdt.worker.step import GradientStep

        self.task, self.blobs = task, LocalBlobs.create()
        x, y, *_ = load(task)
        model = fresh(task, 0)
        self._flavor = flavor_of(model)
        self._data = capture_data(self._flavor.name, self.blobs, x, y, batch_size=TASKS[task].batch)
        self._flavor.build(model, self._data.spec)
        self._program = capture_program(self._flavor, model, self.blobs)
        self._fit = FitArguments(batch_size=TASKS[task].batch, epochs=TASKS[task].epochs, shuffle=True)
        self._worker, self._served = build(self._program, self.blobs), build(self._program, self.blobs)
        self._step, self._tester = GradientStep(self._worker), Tester(task, self._served.model)

    def _state(self, seed: int) -> Any:
        from fdt.job import State
        from fdt.trainable import Trainable

        model = fresh(self.task, seed)
        self._flavor.build(model, self._data.spec)
        given = Trainable(self._flavor, model)
        return State(self.blobs.put_arrays(given.model_arrays()), self.blobs.put_arrays(given.optimizer_arrays()))

    def train(self, run: Run, cluster: Cluster) -> dict[str, Any]:
        """Return the curve of one run, its staleness and its bytes."""
        from fdt.job import JobSpec, State
        from nfdt.server.job import ServedJob
        from nfdt.simulator.session import SimulatedJob

        task, curve, pushes = TASKS[run.task], list[tuple[int, float, float]](), 0
        state = self._state(run.seed)
        options = {"rule": run.algorithm, "overlap": "off"}
        spec = JobSpec(
            id="job",
            program=self._program,
            state=state,
            data=self._data.train,
            fit=self._fit,
            seed=run.seed,
            options=options,
        )
        self._worker.load(state, self.blobs)
        job = ServedJob(spec, self._served, self.blobs, shard=0, shards=1, workers=len(cluster.workers))
        per_push = job.rule.batches_per_push

        def heard(now_s: float, kind: str, worker: int, tau: int) -> None:
            nonlocal pushes
            if kind not in ("push", "hold"):
                return
            pushes += 1
            done = min(pushes * per_push, task.steps * task.epochs)
            if done // task.every > (curve[-1][0] if curve else 0) // task.every:
                curve.append((done, round(now_s, 4), round(self._tester(), 4)))
                if len(curve) > 2 * STUCK and all(a < CHANCE for *_, a in curve[-STUCK:]):
                    raise Diverged

        session = SimulatedJob(job, self._step, self._worker, cluster, lambda event: None, heard=heard)
        with contextlib.suppress(Diverged):
            for epoch in range(task.epochs):
                session.start_epoch(epoch, State())
        record = session.record
        curve.append((task.steps * task.epochs, round(session.now_s, 4), round(self._tester(), 4)))
        total = sum(record.staleness.values())
        return {
            "curve": curve,
            "bytes": sum(e.bytes_sent + e.bytes_received for e in record.epochs),
            "tau": round(sum(tau * count for tau, count in record.staleness.items()) / max(1, total), 2),
        }


# -- HFDT ----------------------------------------------------------------------------------------------------------
class Ranks:
    """The model of a task, which the ranks of a simulated run use in turn: each has values of its own."""

    def __init__(self, task: str) -> None:
        self.task, self.model = task, fresh(task, 0)
        self.model.build((None, *load(task)[0].shape[1:]))
        self.model.optimizer.build(self.model.trainable_variables)
        self.weights = [v.value for v in self.model.trainable_variables]
        self.slots = [v.value for v in self.model.optimizer.variables if v.dtype.startswith("float") and v.shape]
        others = [*self.model.non_trainable_variables, *self.model.optimizer.variables]
        self.others = [v.value for v in others if all(v.value is not s for s in self.slots)]
        self.test = Tester(task, self.model)
        self.step, self.gradient = tf.function(self._step, autograph=False), tf.function(self._gradient)

    @property
    def variables(self) -> list[Any]:
        """All variables: weights, slots, others."""
        return [*self.weights, *self.slots, *self.others]

    def values(self) -> list[Any]:
        """Return the values of all variables."""
        return [v.read_value() for v in self.variables]

    def assign(self, values: Sequence[Any]) -> None:
        """Write `values`, of the first variables or of all."""
        for variable, value in zip(self.variables, values, strict=False):
            variable.assign(value)

    def start(self, seed: int) -> list[Any]:
        """Return the values at the start of a training."""
        model = fresh(self.task, seed)
        model.build((None, *load(self.task)[0].shape[1:]))
        model.optimizer.build(model.trainable_variables)
        own = [v.value for v in model.trainable_variables]
        weights = {id(v) for v in own}
        floats = [v.value for v in model.optimizer.variables if v.dtype.startswith("float") and v.shape]
        others = [*model.non_trainable_variables, *model.optimizer.variables]
        rest = [v.value for v in others if all(v.value is not s for s in floats) and id(v.value) not in weights]
        return [tf.identity(v) for v in [*own, *floats, *rest]]

    def _loss(self, x: Any, y: Any) -> Any:
        return self.model.compute_loss(x=x, y=y, y_pred=self.model(x, training=True))

    def _gradient(self, x: Any, y: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = self._loss(x, y)
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, self.weights)]

    def _step(self, x: Any, y: Any, linear: list[Any], mu: Any, first: list[Any]) -> None:
        found = self._gradient(x, y)
        if linear:
            found = [g - a + mu * (w - w0) for g, a, w, w0 in zip(found, linear, self.weights, first, strict=True)]
        self.model.optimizer.apply(found, self.model.trainable_variables)


def trajectory(ranks: Ranks, algorithm: str, n: int, seed: int) -> list[tuple[int, float]]:
    """Return (batches of the script, accuracy) of HFDT's `algorithm` on `n` ranks; the times are another matter."""
    from hfdt import algorithm_registry
    from hfdt.algorithm import RoundAlgorithm

    name, per_worker, _ = algorithm.partition(PER_WORKER)
    made = algorithm_registry.make(name)
    if isinstance(made, RoundAlgorithm):
        return _rounds(ranks, made, n, seed, whole=bool(per_worker))
    task, found = TASKS[ranks.task], list[tuple[int, float]]()
    taken = n if per_worker else 1
    ranks.assign(ranks.start(seed))
    for epoch in range(task.epochs):
        for i, (x, y) in enumerate(batches(ranks.task, seed, epoch, taken * task.batch)):
            ranks.step(x, y, [], 0.0, [])
            done = min(epoch * task.steps + (i + 1) * taken, (epoch + 1) * task.steps)
            if done // task.every > (found[-1][0] if found else 0) // task.every:
                found.append((done, round(ranks.test(), 4)))
    return [*found, (task.steps * task.epochs, round(ranks.test(), 4))]


def _rounds(ranks: Ranks, rule: Any, n: int, seed: int, *, whole: bool) -> list[tuple[int, float]]:
    """Return the trajectory of an algorithm with rounds: ranks take turns where they exchange."""
    from fdt.network import NodeGroup
    from hfdt.collectives.simulated import SimulatedWorld, on_simulated

    found: list[tuple[int, float]] = []

    def rank(comm: Any) -> None:
        OneRank(ranks, rule, comm, seed, whole=whole).train(found)

    on_simulated(SimulatedWorld(Cluster((NodeGroup("rank", n),))), rank)
    return found


class OneRank:
    """A rank of an algorithm with rounds (hfdt/worker/rounds.py), on values of its own."""

    def __init__(self, ranks: Ranks, rule: Any, comm: Any, seed: int, *, whole: bool) -> None:
        self._ranks, self._rule, self._comm, self._seed, self._whole = ranks, rule, comm, seed, whole
        self.size, self.rank = comm.size, comm.rank
        self._values = ranks.start(seed)
        self._count = len(ranks.weights)
        self._state = rule.init(self._values[: self._count])
        self._round = 0

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Average over ranks: the ReduceGroup of the algorithm. All have as many samples."""
        self._values, held = [tf.identity(v) for v in self._values], tensors
        found: list[Any] = self._comm.sum([t / self.size for t in held], f"round {self._round}")
        self._round += 1
        return found

    def _local(self, epoch: int) -> list[tuple[Any, Any]]:
        """Return this rank's batches of an epoch."""
        task = TASKS[self._ranks.task]
        every = batches(self._ranks.task, self._seed, epoch, task.batch * (self.size if self._whole else 1))
        parts = [[np.array_split(a, self.size)[self.rank] for a in batch] for batch in every]
        return [(x, y) for x, y in parts if len(x)]

    def train(self, found: list[tuple[int, float]]) -> None:
        """Train; rank 0 adds (batches of the script, accuracy) to `found` at the ends of rounds."""
        task = TASKS[self._ranks.task]
        scale = self.size if self._whole else 1
        for epoch in range(task.epochs):
            local = self._local(epoch)
            size = self._rule.batches or len(local)
            for first in range(0, len(local), size):
                self._one_round(local[first : first + size])
                done = min(epoch * task.steps + (first + size) * scale, (epoch + 1) * task.steps)
                if self.rank == 0 and done // task.every > (found[-1][0] if found else 0) // task.every:
                    self._ranks.assign(self._values)
                    found.append((done, round(self._ranks.test(), 4)))

    def _one_round(self, local: list[tuple[Any, Any]]) -> None:
        w0, linear, mu = self._values[: self._count], [], 0.0
        if self._rule.begin is not None:
            task, self._state = self._rule.begin(self._state, w0, LocalGradient(self._ranks, self._values, local), self)
            linear, mu = task.linear, task.mu
        self._ranks.assign(self._values)
        for _ in range(self._rule.passes):
            for x, y in local:
                self._ranks.step(x, y, linear, mu, w0 if linear else [])
        self._values = self._ranks.values()
        after, self._state = self._rule.end(self._state, w0, self._values[: self._count], self)
        slots = self._values[self._count : self._count + len(self._ranks.slots)]
        if self._rule.slots:
            slots = self.mean(slots)
        self._values = [*after, *slots, *self._values[self._count + len(slots) :]]


@dataclass(frozen=True)
class LocalGradient:
    """A rank's objective: the gradient over its batches of a round."""

    ranks: Ranks
    values: list[Any]
    local: list[tuple[Any, Any]]

    def gradient(self) -> list[Any]:
        """Return the mean gradient."""
        self.ranks.assign(self.values)
        found = [self.ranks.gradient(x, y) for x, y in self.local]
        return [sum(parts) / len(found) for parts in zip(*found, strict=True)]


@contextlib.contextmanager
def simulator(task: str) -> Iterator[Simulator]:
    """Return the simulator of a task, whose blobs are removed at the end."""
    made = Simulator(task)
    try:
        yield made
    finally:
        made.blobs.close()
