"""The trainings of coded.py: steps of plain SGD, and seconds of asynchronous SGD on a described network, to a mark.

A synchronous step with the sum of all blocks is the same for every placement, so the steps of one machine are those of
every synchronous algorithm. Asynchronous SGD runs in nfdt's own simulator, without a client.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import harness  # noqa: F401  the project is on the path with it

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
from pictures import accuracy, images  # noqa: E402

from fdt.blobs import LocalBlobs  # noqa: E402
from fdt.network import Cluster, NetworkLink, NodeGroup, Speed  # noqa: E402

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


def network(task: str, factor: float = 1.0) -> Any:
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
    model = keras.Sequential([keras.Input(TASKS[task].shape), *body, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(factor * TASKS[task].rate), loss)
    return model


def weights(task: str) -> int:
    return sum(int(np.prod(v.shape)) for v in network(task).trainable_variables)


def cluster(text: str, n: int, task: Task, slower: float = 1.0) -> Cluster:
    """`text`: "medium 1 Gbit/s" (a hub, the air: all share it), "switch 100 Mbit/s" (full duplex links), "": none."""
    if not text:
        return Cluster((NodeGroup("node", n),), step_s=task.step_s)
    kind, number, unit = text.split()
    link = NetworkLink(float(number) * {"Mbit/s": 1e6, "Gbit/s": 1e9}[unit] / 8 / slower, LATENCY_S)
    own, shared = (NetworkLink(), link) if kind == "medium" else (link, None)
    nodes = (NodeGroup("node", n, Speed(1.0, SHAPE)),)
    return Cluster(nodes, step_s=task.step_s, link=own, multicast=True, medium=shared)


# -- runs --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """`network` "" and one node: plain SGD. `factor`: of the task's rate."""

    task: str
    network: str
    nodes: int
    seed: int
    mark: float
    factor: float = 1.0


@dataclass(frozen=True)
class Step:
    """One of a synchronous method, at its best redundancy."""

    task: str
    network: str
    nodes: int
    method: str


class Kept:
    """Stored results, in a file of JSON lines: they are not trained or simulated again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self._results = {Run(**line["run"]): line["result"] for line in lines if "run" in line}
        self._steps = {Step(**line["step"]): (line["r"], line["seconds"]) for line in lines if "step" in line}

    def step(self, step: Step, simulate: Callable[[], tuple[int, float]]) -> tuple[int, float]:
        """(r, 0 for none, and seconds)."""
        if step not in self._steps:
            r, seconds = self._steps[step] = simulate()
            self._write({"step": asdict(step), "r": r, "seconds": seconds})
        return self._steps[step]

    def __contains__(self, run: Run) -> bool:
        return run in self._results

    def __getitem__(self, run: Run) -> dict[str, Any]:
        return self._results[run]

    def fastest(self, *runs: Run) -> tuple[Run, float] | None:
        """Of those that reached the mark: (run, seconds)."""
        done = [(run, self[run]["seconds"]) for run in runs if run in self]
        reached = [(run, seconds) for run, seconds in done if seconds is not None]
        return min(reached, key=lambda found: found[1], default=None)

    def add(self, run: Run, result: dict[str, Any]) -> None:
        self._results[run] = result
        self._write({"run": asdict(run), "result": result})

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as out:
            out.write(json.dumps(line) + "\n")


class Enough(Exception):
    """Raised when the mark is reached, or cannot be reached in time."""


def train(run: Run, within_s: float = float("inf")) -> dict[str, Any]:
    """Return steps and simulated seconds to the mark, None where the task's longest or `within_s` is exceeded."""
    task, began = TASKS[run.task], time.monotonic()
    (x, y), (tx, ty) = images(task.data)
    steps, seconds, pushes = None, None, 0
    curve: list[tuple[int, float, float]] = []

    def heard(now_s: float, kind: str, worker: int, tau: int) -> None:
        nonlocal pushes, steps, seconds
        pushes += kind == "push"
        if kind != "push" or pushes % task.every:
            return
        reached = accuracy(session.model, tx, ty)
        curve.append((pushes, round(now_s, 4), round(reached, 4)))
        if reached >= run.mark:
            steps, seconds = pushes, now_s
        if reached >= run.mark or pushes >= task.longest or now_s > within_s:
            raise Enough

    with contextlib.closing(LocalBlobs.create()) as blobs, contextlib.suppress(Enough):
        session = Simulated(run, blobs, x, y, heard)
        for epoch in range(1000):
            session.epoch(epoch)
    best = max(reached for *_, reached in curve)
    return {"steps": steps, "seconds": seconds, "best": best, "curve": curve, "wall_s": time.monotonic() - began}


class Simulated:
    """nfdt's simulator on one model, without a client. `model`: the server's."""

    def __init__(self, run: Run, blobs: LocalBlobs, x: Any, y: Any, heard: Callable[..., None]) -> None:
        from client_shim.capture.data import capture_data
        from client_shim.capture.program import capture_program
        from fdt.job import FitArguments, JobSpec, State
        from fdt.keras import flavor_of
        from fdt.trainable import Trainable, build
        from nfdt.server.job import ServedJob
        from nfdt.simulator.session import SimulatedJob
        from nfdt.worker.step import GradientStep

        task, model = TASKS[run.task], network(run.task, run.factor)
        flavor = flavor_of(model)
        data = capture_data(flavor.name, blobs, x, y, batch_size=task.batch)
        flavor.build(model, data.spec)
        given = Trainable(flavor, model)
        state = State(blobs.put_arrays(given.model_arrays()), blobs.put_arrays(given.optimizer_arrays()))
        program = capture_program(flavor, model, blobs)
        options = {"rule": "asgd", "overlap": "off"}
        fit = FitArguments(batch_size=task.batch, epochs=1000, shuffle=True)
        spec = JobSpec(id="job", program=program, state=state, data=data.train, fit=fit, seed=run.seed, options=options)
        worker, served = build(program, blobs), build(program, blobs)
        worker.load(state, blobs)
        job = ServedJob(spec, served, blobs, shard=0, shards=1, workers=1)
        self.model = served.model
        made = cluster(run.network, run.nodes, task)
        self._session = SimulatedJob(job, GradientStep(worker), worker, made, lambda event: None, heard=heard)
        self._unchanged = State()

    def epoch(self, number: int) -> None:
        self._session.start_epoch(number, self._unchanged)
