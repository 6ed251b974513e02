"""All asynchronous rules on real data: accuracy by number of workers, mean and spread over seeds.

    python benchmarks/rules.py                                   # Fashion-MNIST; about half an hour on one core
    python benchmarks/rules.py --rules asgd,ddc_asgd --workers 8 --seeds 0
    python benchmarks/rules.py --data cifar10 --workers 8,16     # hours
    python benchmarks/rules.py --budget-s 200                    # what can be done in 200 s; the same again goes on
    python benchmarks/rules.py --held-out --seeds 10,11          # tuning: 10,000 rows of the training data are the test

The server's own Policy, Core, rule and compiled applier; one process, and a clock that is simulated: a worker's step
takes Gamma(100) of mean 1, so tau is about workers - 1. Results are kept in --out, a JSON line each, and not run twice.
A run whose weights are no longer numbers ends there, with what its network is worth then: 10 points.
"""

import argparse
import functools
import heapq
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import console, table

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from nfdt import rulebook  # noqa: E402
from nfdt.server.applier import Arrived, ModelApplier  # noqa: E402
from nfdt.server.core import Core, Gradient  # noqa: E402
from nfdt.server.instructions import EpochDone, EpochOver, Instruction, Pushed, Send  # noqa: E402
from nfdt.server.policy import Policy  # noqa: E402
from nfdt.variables import Part  # noqa: E402

Tensor = Any
ALONE = "alone"
WAITING = ("ssgd", "k_sync", "ssp", "group_sync")  # they wait: another bargain than staleness
BATCH = 64
HELD_OUT = 10_000
LOOK = 50  # pushes between two looks at whether it has diverged


@dataclass(frozen=True)
class Task:
    """A data set, a network of two convolutions (each pooled) and dense layers, and how it is trained alone."""

    shapes: Sequence[tuple[int, ...]]  # of the kernels
    epochs: int
    workers: Sequence[int]

    def optimizer(self, steps: int) -> Any:
        decay = keras.optimizers.schedules.PiecewiseConstantDecay([int(0.7 * steps)], [0.02, 0.002])
        return keras.optimizers.SGD(decay, momentum=0.9)


class AdamTask(Task):
    def optimizer(self, steps: int) -> Any:
        return keras.optimizers.Adam(1e-3)


LENET5 = [(5, 5, 3, 6), (5, 5, 6, 16), (400, 120), (120, 84), (84, 10)]
TASKS = {
    "fashion_mnist": Task([(5, 5, 1, 8), (5, 5, 8, 16), (256, 64), (64, 10)], 2, (4, 8, 16, 32)),
    "cifar10": Task(LENET5, 10, (8, 16)),
    "cifar10_adam": AdamTask(LENET5, 10, (8, 16)),
}


@dataclass(frozen=True)
class Run:
    """What is run. `held_out`: tested on rows of the training data that are not trained on."""

    data: str
    rule: str
    workers: int
    seed: int
    epochs: int
    held_out: bool


# -- model and data -------------------------------------------------------------------------------------------------


@functools.cache
def load(data: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images in [0, 1] and labels."""
    (x, y), (x_test, y_test) = getattr(keras.datasets, data.removesuffix("_adam")).load_data()

    def images(raw: Any) -> Tensor:
        return tf.constant((raw if raw.ndim == 4 else raw[..., None]).astype("float32") / 255.0)

    return images(x), tf.constant(y.ravel(), tf.int32), images(x_test), tf.constant(y_test.ravel(), tf.int32)


def initial_weights(shapes: Sequence[tuple[int, ...]], rng: np.random.Generator) -> list[Any]:
    """Glorot's uniform kernels and zero biases, as Keras has them."""
    weights: list[Any] = []
    for shape in shapes:
        limit = np.sqrt(6 / (np.prod(shape[:-2]) * (shape[-2] + shape[-1])))
        weights += [rng.uniform(-limit, limit, shape), np.zeros(shape[-1])]
    return [keras.Variable(w.astype("float32")) for w in weights]


def logits(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    for i in (0, 2):
        x = tf.nn.relu(tf.nn.conv2d(x, weights[i], 1, "VALID") + weights[i + 1])
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.reshape(x, (-1, weights[4].shape[0]))
    for i in range(4, len(weights) - 2, 2):
        x = tf.nn.relu(x @ weights[i] + weights[i + 1])
    return x @ weights[-2] + weights[-1]


@tf.function(autograph=False)
def gradient(weights: list[Tensor], images: Tensor, labels: Tensor, rows: Tensor) -> list[Tensor]:
    """Of the mean cross-entropy on `rows`: one compiled function for all workers."""
    x, y = tf.gather(images, rows), tf.gather(labels, rows)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(weights, x)))
    found: list[Tensor] = tape.gradient(loss, weights)
    return found


@tf.function(autograph=False)
def hits(weights: list[Tensor], images: Tensor, labels: Tensor) -> Tensor:
    return tf.reduce_sum(tf.cast(tf.argmax(logits(weights, images), -1, tf.int32) == labels, tf.float32))


def accuracy(weights: Sequence[Tensor], images: Tensor, labels: Tensor) -> float:
    """In points."""
    blocks = range(0, len(images), 1000)
    right = sum(float(hits(list(weights), images[i : i + 1000], labels[i : i + 1000])) for i in blocks)
    return 100 * right / len(images)


@tf.function(autograph=False)
def all_finite(weights: list[Tensor]) -> Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(w)) for w in weights])


def finite(weights: Sequence[Tensor]) -> bool:
    return bool(all_finite(list(weights)))


# -- one run --------------------------------------------------------------------------------------------------------


class Cluster:
    """Simulated workers around the server's policy."""

    def __init__(self, run: Run, task: Task) -> None:
        self.rng, self.clock = np.random.default_rng(run.seed), np.random.default_rng(run.seed + 1000)
        self.images, self.labels, *test = load(run.data)
        self.rows, self.test = np.arange(len(self.images)), test
        if run.held_out:
            self.rows = np.random.default_rng(777).permutation(self.rows)
            self.rows, held = self.rows[:-HELD_OUT], tf.constant(self.rows[-HELD_OUT:])
            self.test = [tf.gather(self.images, held), tf.gather(self.labels, held)]
        self.workers, self.steps = run.workers, -(-len(self.rows) // BATCH)
        optimizer = task.optimizer(self.steps * run.epochs)
        trainable = initial_weights(task.shapes, self.rng)
        optimizer.build(trainable)
        self.applier = ModelApplier(Part(optimizer, trainable))
        rule = rulebook.make("asgd" if run.rule == ALONE else run.rule)
        self.policy = Policy(Core(rule, self.applier, run.workers), self.steps)
        self.now, self.events, self.computing = 0.0, 0, []  # (when done, order, step_s, Send)
        self.pushes, self.taus = [0] * run.workers, [0, 0]

    def step_s(self, worker: int) -> float:
        """How long a step that `worker` begins now takes."""
        return float(self.clock.gamma(100, 0.01))

    def pushed(self) -> bool:
        """Called after each push; False stops the training: a weight that is no number stays none."""
        return bool(sum(self.pushes) % LOOK) or finite(self.applier.params)

    def epoch(self, number: int) -> bool:
        """One pass over the data, in an order of its own. False: it was stopped."""
        order = self.rng.permutation(self.rows)
        self.take(self.policy.start_epoch(number))
        for worker in range(self.workers):
            self.take(self.policy.ask(worker))
        while self.computing:
            self.now, _, seconds, sent = heapq.heappop(self.computing)
            batch = sent.batches[0]
            rows = order[batch * BATCH : (batch + 1) * BATCH]
            found = gradient(list(sent.sent.trainable), self.images, self.labels, tf.constant(rows, tf.int32))
            self.pushes[sent.worker] += 1
            pushed = Gradient(Arrived(found), len(rows), seconds)
            self.take(self.policy.push(Pushed(sent.worker, self.pushes[sent.worker], (batch,), pushed)))
            if not self.pushed():
                return False
        return True

    def take(self, instructions: Sequence[Instruction]) -> None:
        for said in instructions:
            if isinstance(said, Send):
                self.events += 1
                seconds = self.step_s(said.worker)
                heapq.heappush(self.computing, (self.now + seconds, self.events, seconds, said))
            elif isinstance(said, EpochOver) and self.policy.epoch is not None:
                self.take(self.policy.ask(said.worker))  # told of the epoch before
            elif isinstance(said, EpochDone):
                self.taus[0] += sum(tau * count for tau, count in said.staleness.items())
                self.taus[1] += said.steps


def train(run: Run) -> dict[str, float]:
    """Accuracy on the test rows, in points, and what it took."""
    start = time.perf_counter()
    cluster = Cluster(run, TASKS[run.data])
    for epoch in range(run.epochs):
        if not cluster.epoch(epoch):
            break
    reached = accuracy(cluster.applier.params, *cluster.test)
    tau = cluster.taus[0] / max(1, cluster.taus[1])
    return {"accuracy": reached, "tau": tau, "simulated": cluster.now, "seconds": time.perf_counter() - start}


# -- the table ------------------------------------------------------------------------------------------------------


def runs(given: argparse.Namespace) -> list[Run]:
    """Seeds outermost: a table of one seed is whole before the next begins."""
    task = TASKS[given.data]
    epochs = given.epochs or task.epochs
    workers = [int(n) for n in given.workers.split(",")] if given.workers else task.workers
    wanted = []
    for seed in (int(s) for s in given.seeds.split(",")):
        wanted.append(Run(given.data, ALONE, 1, seed, epochs, given.held_out))
        wanted += [
            Run(given.data, rule, n, seed, epochs, given.held_out) for n in workers for rule in split(given.rules)
        ]
    return wanted


def split(text: str) -> list[str]:
    """`asgd;ssp(bound=1)`, or with commas where no rule has parameters; "": all of them."""
    if not text:
        names = [name for name in rulebook.names() if rulebook.make(name).local_steps is None]  # gradients, here
        return [name for name in names if name not in WAITING] + [name for name in names if name in WAITING]
    return [rule.strip() for rule in text.split(";" if ";" in text or "(" in text else ",")]


def read(out: Path) -> dict[Run, dict[str, float]]:
    if not out.exists():
        return {}
    lines = (json.loads(line) for line in out.read_text().splitlines())
    return {Run(**line["run"]): line["result"] for line in lines}


def show(wanted: Sequence[Run], done: dict[Run, dict[str, float]]) -> None:
    """Mean over seeds (smallest .. largest); a dash where nothing was run."""
    columns = sorted({run.workers for run in wanted if run.rule != ALONE})
    rows = []
    for rule in dict.fromkeys(run.rule for run in wanted):
        cells = [[run for run in wanted if run.rule == rule and run.workers in (n, 1)] for n in columns]
        rows.append([rule, *(cell([done[run]["accuracy"] for run in runs if run in done]) for runs in cells)])
    title = f"{wanted[0].data}, {wanted[0].epochs} epochs, accuracy in points{', held out' * wanted[0].held_out}"
    table(title, ["rule", *(f"{n} workers" for n in columns)], rows)


def cell(points: Sequence[float]) -> str:
    if len(points) < 2:
        return f"{points[0]:.1f}" if points else "-"
    return f"{statistics.fmean(points):.1f} ({min(points):.1f} .. {max(points):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=TASKS, default="fashion_mnist")
    parser.add_argument("--rules", default="")
    parser.add_argument("--workers", default="")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--budget-s", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=Path("rules.jsonl"))
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    wanted, done, start = runs(given), read(given.out), time.monotonic()
    for run in wanted:
        if run in done or time.monotonic() - start > given.budget_s:
            continue
        done[run] = train(run)
        console.print(f"  {run.rule}, {run.workers} workers, seed {run.seed}: {done[run]['accuracy']:.2f}", style="dim")
        with given.out.open("a") as out:
            out.write(json.dumps({"run": asdict(run), "result": done[run]}) + "\n")
    show(wanted, done)
    if missing := sum(run not in done for run in wanted):
        console.print(f"{missing} of {len(wanted)} runs are still to do: the same command goes on with them")


if __name__ == "__main__":
    main()
