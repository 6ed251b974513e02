"""One training by an asynchronous algorithm on a simulated clock, for the tables of rules.py."""

import functools
import heapq
import itertools
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from fdt.typing import Tensor  # noqa: E402
from nfdt import algorithms  # noqa: E402
from nfdt.model.variables import OwnedVariables, current_rate, momentum_of  # noqa: E402
from nfdt.server import EpochDone, Instruction, Send  # noqa: E402
from nfdt.server.algorithm_state import AlgorithmState  # noqa: E402
from nfdt.server.applier import ModelApplier  # noqa: E402
from nfdt.server.scheduler import Scheduler  # noqa: E402
from nfdt.transport import EpochOver, WorkerGradient  # noqa: E402

ALONE = "alone"
BATCH = 64
HELD_OUT = 10_000
LOOK = 50  # pushes between two looks at whether it has diverged


@dataclass(frozen=True)
class Task:
    """A data set, a network of two convolutions (each pooled) and dense layers, and its training on one machine."""

    shapes: Sequence[tuple[int, ...]]  # of the kernels
    epochs: int
    workers: Sequence[int]

    def optimizer(self, steps: int, factor: float) -> Any:
        """Return the optimizer for a training of `steps`, with its rate times `factor`."""
        rates = [0.02 * factor, 0.002 * factor]
        decay = keras.optimizers.schedules.PiecewiseConstantDecay([int(0.7 * steps)], rates)
        return keras.optimizers.SGD(decay, momentum=0.9)


class AdamTask(Task):
    def optimizer(self, steps: int, factor: float) -> Any:
        return keras.optimizers.Adam(1e-3 * factor)


LENET5 = [(5, 5, 3, 6), (5, 5, 6, 16), (400, 120), (120, 84), (84, 10)]
TASKS = {
    "fashion_mnist": Task([(5, 5, 1, 8), (5, 5, 8, 16), (256, 64), (64, 10)], 2, (4, 8, 16, 32)),
    "cifar10": Task(LENET5, 10, (8, 16)),
    "cifar10_adam": AdamTask(LENET5, 10, (8, 16)),
}


@dataclass(frozen=True)
class Run:
    """A training to run. `rate`: times the task's; `held_out`: tested on training rows that are not trained on."""

    data: str
    rule: str
    workers: int
    seed: int
    epochs: int
    held_out: bool
    rate: float = 1.0


# -- model and data -------------------------------------------------------------------------------------------------


@functools.cache
def load(data: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training and test images in [0, 1] and labels."""
    (x, y), (x_test, y_test) = getattr(keras.datasets, data.removesuffix("_adam")).load_data()

    def images(raw: Any) -> Tensor:
        return tf.constant((raw if raw.ndim == 4 else raw[..., None]).astype("float32") / 255.0)

    return images(x), tf.constant(y.ravel(), tf.int32), images(x_test), tf.constant(y_test.ravel(), tf.int32)


def rows_of(run: Run) -> tuple[Tensor, Tensor, Any, list[Tensor]]:
    """Return all training images and labels, the rows of them to train on, and the images and labels to test on."""
    images, labels, *test = load(run.data)
    rows = np.arange(len(images))
    if not run.held_out:
        return images, labels, rows, test
    rows = np.random.default_rng(777).permutation(rows)
    held = tf.constant(rows[-HELD_OUT:])
    return images, labels, rows[:-HELD_OUT], [tf.gather(images, held), tf.gather(labels, held)]


def initial_weights(shapes: Sequence[tuple[int, ...]], rng: np.random.Generator) -> list[Any]:
    """Return Glorot's uniform kernels and zero biases, as in Keras."""
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
    """Return the gradient of the mean cross-entropy on `rows`, by one compiled function for all workers."""
    x, y = tf.gather(images, rows), tf.gather(labels, rows)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(weights, x)))
    found: list[Tensor] = tape.gradient(loss, weights)
    return found


@tf.function(autograph=False)
def path_gradient(
    weights: list[Tensor], images: Tensor, labels: Tensor, rows: Tensor, parts: int, size: Tensor
) -> list[Tensor]:
    """Return the mean gradient along `parts` micro-steps of SGD (nfdt/worker/step.py), each of rate `size`."""
    mean = [tf.zeros_like(w) for w in weights]
    count = rows.shape[0]
    bounds = [count * part // parts for part in range(parts + 1)]
    for low, high in itertools.pairwise(bounds):
        found = gradient(weights, images, labels, rows[low:high])
        mean = [m + g * ((high - low) / count) for m, g in zip(mean, found, strict=True)]
        weights = [w - size * g for w, g in zip(weights, found, strict=True)]
    return mean


@tf.function(autograph=False)
def hits(weights: list[Tensor], images: Tensor, labels: Tensor) -> Tensor:
    return tf.reduce_sum(tf.cast(tf.argmax(logits(weights, images), -1, tf.int32) == labels, tf.float32))


def accuracy(weights: Sequence[Tensor], images: Tensor, labels: Tensor) -> float:
    """Return the accuracy in points."""
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
    """Simulated workers around the server's scheduler."""

    def __init__(self, run: Run, task: Task) -> None:
        self.rng, self.clock = np.random.default_rng(run.seed), np.random.default_rng(run.seed + 1000)
        self.images, self.labels, self.rows, self.test = rows_of(run)
        self.workers, self.steps = run.workers, -(-len(self.rows) // BATCH)
        optimizer = task.optimizer(self.steps * run.epochs, run.rate)
        trainable = initial_weights(task.shapes, self.rng)
        optimizer.build(trainable)
        self.optimizer, self.applier = optimizer, ModelApplier(OwnedVariables(optimizer, trainable))
        self.rule = rule = algorithms.make("asgd" if run.rule == ALONE else run.rule)
        self.policy = Scheduler(AlgorithmState(rule, self.applier, run.workers), self.steps)
        self.now, self.events, self.computing = 0.0, 0, []  # (when done, order, step_s, Send)
        self.pushes, self.taus = [0] * run.workers, [0, 0]
        self.latest: deque[list[Tensor]] = deque(maxlen=2 * run.workers)  # the weights after each of the last updates

    def step_s(self, worker: int) -> float:
        """Return the duration of a step that `worker` begins now."""
        return float(self.clock.gamma(100, 0.01))

    def work(self, weights: list[Tensor], batches: Sequence[Any]) -> list[Tensor]:
        """Return what a worker pushes that pulled `weights`: the gradient of its batch, given as numbers of rows."""
        (rows,) = batches
        return list(self.gradient(weights, tf.constant(rows, tf.int32)))

    def pushed(self) -> bool:
        """Called after each push; False stops the training, because a weight that is NaN stays NaN."""
        self.latest.append(self.applier.params)
        return bool(sum(self.pushes) % LOOK) or finite(self.applier.params)

    def averaged(self) -> list[Tensor]:
        """Return the mean of the weights after each of the last 2 n updates of n workers."""
        return [tf.add_n(arrays) / len(arrays) for arrays in zip(*self.latest, strict=True)]

    def epoch(self, number: int) -> bool:
        """Run one pass over the data, in an order of its own; return False if it was stopped."""
        order = self.rng.permutation(self.rows)
        self.take(self.policy.start_epoch(number))
        for worker in range(self.workers):
            self.take(self.policy.ask(worker))
        while self.computing:
            self.now, _, seconds, sent = heapq.heappop(self.computing)
            rows = [order[batch * BATCH : (batch + 1) * BATCH] for batch in sent.batches]
            found = self.work(list(sent.sent.trainable), rows)
            self.pushes[sent.worker] += 1
            pushed = WorkerGradient(found, sum(map(len, rows)), seconds, batches=sent.batches)
            self.take(self.policy.push(sent.worker, self.pushes[sent.worker], pushed))
            if not self.pushed():
                return False
        return True

    def gradient(self, weights: list[Tensor], rows: Tensor) -> list[Tensor]:
        """Return what a worker pushes for `rows`."""
        parts = min(self.rule.micro_steps, len(rows))
        if parts == 1:
            return gradient(weights, self.images, self.labels, rows)
        size = current_rate(self.optimizer) / ((1 - momentum_of(self.optimizer)) * parts)
        return path_gradient(weights, self.images, self.labels, rows, parts, size)

    def take(self, instructions: Sequence[Instruction]) -> None:
        for said in instructions:
            if isinstance(said, Send):
                self.events += 1
                seconds = sum(self.step_s(said.worker) for _ in said.batches)
                heapq.heappush(self.computing, (self.now + seconds, self.events, seconds, said))
            elif isinstance(said, EpochOver) and self.policy.epoch is not None:
                self.take(self.policy.ask(said.worker))  # told of the epoch before
            elif isinstance(said, EpochDone):
                self.taus[0] += sum(tau * count for tau, count in said.staleness.items())
                self.taus[1] += said.steps


def train(run: Run) -> dict[str, float]:
    """Return accuracy on the test rows, in points, also that of averaged weights, and the cost."""
    start = time.perf_counter()
    cluster = Cluster(run, TASKS[run.data])
    for epoch in range(run.epochs):
        if not cluster.epoch(epoch):
            break
    reached = accuracy(cluster.applier.params, *cluster.test)
    averaged = accuracy(cluster.averaged(), *cluster.test)
    tau, seconds = cluster.taus[0] / max(1, cluster.taus[1]), time.perf_counter() - start
    return {"accuracy": reached, "averaged": averaged, "tau": tau, "simulated": cluster.now, "seconds": seconds}
