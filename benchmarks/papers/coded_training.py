"""The trainings of source E: steps of plain SGD, and seconds of asynchronous SGD on a described network, to a mark.

A synchronous step with the sum of all blocks is the same for every placement, so the steps of one machine are those of
every synchronous algorithm. Asynchronous SGD runs in nfdt's own simulator, without a client.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import harness  # noqa: F401  the project is on the path with it

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
from pictures import accuracy, images  # noqa: E402

from fdt.blobs import LocalBlobs  # noqa: E402
from fdt.network import Cluster  # noqa: E402
from fdt.network.reading import parse_cluster  # noqa: E402

DIVIDED, WHOLE = "the batch is divided", "a batch per node"
CLASSES, LOOKED = 10, {DIVIDED: 10_000, WHOLE: 2_000}  # test rows, of the task's classes
SHAPE = 100.0  # of the Gamma distribution of a step's time
LATENCY_S = 1e-4


# -- tasks -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Task:
    """`step_s`: a batch's gradient on one core of this machine, measured with nothing beside it. `every`: steps."""

    data: str
    shape: tuple[int, ...]
    batch: int
    rate: float
    step_s: float
    mark: float
    every: int
    longest: int  # steps


TASKS = {
    "dnn": Task("mnist", (28, 28, 1), 100, 0.01, 0.004, 0.82, 10, 6_000),
    "cnn": Task("cifar10", (32, 32, 3), 64, 0.05, 0.013, 0.70, 200, 12_000),
}


def network(task: str, factor: float = 1.0, classes: int = CLASSES) -> Any:
    """DNN: two hidden layers of 512. CNN: three convolutions and a hidden layer. SGD, no momentum: its delay is known
    to break asynchronous SGD (docs/algorithms.md). `factor`: of the task's rate."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    body: list[Any] = [layers.Flatten(), layers.Dense(512, "relu"), layers.Dense(512, "relu")]
    if task == "cnn":
        body = [
            layer
            for width in (16, 32, 64)
            for layer in (layers.Conv2D(width, 3, padding="same", activation="relu"), layers.MaxPooling2D())
        ]
        body += [layers.Flatten(), layers.Dense(64, "relu")]
    model = keras.Sequential([keras.Input(TASKS[task].shape), *body, layers.Dense(classes)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(factor * TASKS[task].rate), loss)
    return model


def weights(task: str) -> int:
    return sum(int(np.prod(v.shape)) for v in network(task).trainable_variables)


def cluster_file(text: str, n: int, task: Task) -> str:
    """Return a cluster file.

    `text`: "medium 1 Gbit/s" (a hub, the air: all share it), "switch 100 Mbit/s" (full duplex links), "": unlimited.
    """
    if not text:
        return f"step: {task.step_s:g} s\nnodes: [{{name: node, count: {n}}}]\n"
    kind, bandwidth = text.split(" ", 1)
    return f"""\
step: {task.step_s:g} s
multicast: true
{"medium" if kind == "medium" else "link"}: {{bandwidth: {bandwidth}, latency: {1e3 * LATENCY_S:g} ms}}
nodes:
  - {{name: node, count: {n}, speed: {{distribution: gamma, mean: 1, shape: {SHAPE:g}}}}}
"""


def cluster(text: str, n: int, task: Task) -> Cluster:
    return parse_cluster(cluster_file(text, n, task))


# -- trainings ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Training:
    """Plain SGD of one machine (`method` "sgd"), or asynchronous SGD of `nodes` on a network ("asgd").

    Attributes:
        load: DIVIDED: the batch is the task's, synchronous nodes share it; the task has all classes. WHOLE: a node has
            a batch of its own, and `nodes` nodes have a task of so many classes.
        network: As `cluster` reads it; "" under sgd.
        factor: Of the task's rate.
        mark: The accuracy at which the training ends.
        steps: The steps after which it ends anyway.
    """

    load: str
    task: str
    method: str
    network: str
    nodes: int
    seed: int
    factor: float
    mark: float
    steps: int

    @property
    def classes(self) -> int:
        return self.nodes if self.load == WHOLE else CLASSES

    @property
    def every(self) -> int:
        """Steps between two looks: the small tasks reach the mark in a few steps."""
        return TASKS[self.task].every // (5 if self.load == WHOLE else 1)

    @property
    def batch(self) -> int:
        shared = self.nodes if self.load == WHOLE and self.method == "sgd" else 1
        return TASKS[self.task].batch * shared


class Enough(Exception):
    """Raised when the mark is reached, or cannot be reached in time."""


def train(training: Training) -> dict[str, Any]:
    """Return steps and simulated seconds to the mark, None where it is not reached, and the curve of both.

    Synchronous steps take the time of their exchange, which is simulated elsewhere: `seconds` is None under sgd.
    """
    task, steps, seconds, pushes = TASKS[training.task], None, None, 0
    curve: list[tuple[int, float, float]] = []
    (x, y), (tx, ty) = ((x[y < training.classes], y[y < training.classes]) for x, y in images(task.data))

    def heard(now_s: float, kind: str, worker: int, tau: int) -> None:
        nonlocal pushes, steps, seconds
        pushes += kind == "push"
        if kind != "push" or pushes % training.every:
            return
        looked = LOOKED[training.load]
        reached = accuracy(session.model, tx[:looked], ty[:looked])
        curve.append((pushes, round(now_s, 4), round(reached, 4)))
        if reached >= training.mark and steps is None:
            steps, seconds = pushes, now_s if training.method == "asgd" else None
        if reached >= training.mark or pushes >= training.steps:
            raise Enough

    with contextlib.closing(LocalBlobs.create()) as blobs, contextlib.suppress(Enough):
        session = Simulated(training, blobs, x, y, heard)
        for epoch in range(1000):
            session.epoch(epoch)
    return {"steps": steps, "seconds": seconds, "best": max(reached for *_, reached in curve), "curve": curve}


class Simulated:
    """nfdt's simulator on one model, without a client. `model`: the server's."""

    def __init__(self, run: Training, blobs: LocalBlobs, x: Any, y: Any, heard: Callable[..., None]) -> None:
        from client_shim.capture.data import capture_data
        from client_shim.capture.program import capture_program
        from fdt.job import FitArguments, JobSpec, State
        from fdt.keras import flavor_of
        from fdt.trainable import Trainable, build
        from nfdt.server.job import ServedJob
        from nfdt.simulator.session import SimulatedJob
        from nfdt.worker.step import GradientStep

        task, model = TASKS[run.task], network(run.task, run.factor, run.classes)
        flavor = flavor_of(model)
        data = capture_data(flavor.name, blobs, x, y, batch_size=run.batch)
        flavor.build(model, data.spec)
        given = Trainable(flavor, model)
        state = State(blobs.put_arrays(given.model_arrays()), blobs.put_arrays(given.optimizer_arrays()))
        program, _ = capture_program(flavor, model, blobs)
        options = {"rule": "asgd", "overlap": "off"}
        fit = FitArguments(batch_size=run.batch, epochs=1000, shuffle=True)
        spec = JobSpec(id="job", program=program, state=state, data=data.train, fit=fit, seed=run.seed, options=options)
        worker, served = build(program, blobs), build(program, blobs)
        worker.load(state, blobs)
        job = ServedJob(spec, served, blobs, shard=0, shards=1, workers=1)
        self.model = served.model
        made = cluster(run.network, run.nodes if run.method == "asgd" else 1, task)
        self._session = SimulatedJob(job, GradientStep(worker), worker, made, lambda event: None, on_exchange=heard)
        self._unchanged = State()

    def epoch(self, number: int) -> None:
        self._session.start_epoch(number, self._unchanged)
