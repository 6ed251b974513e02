"""A training on a described cluster: NFDT's own scheduler and algorithms, on the simulated clock of `nfdt simulate`.

Steps take the times of the cluster file, and tensors cross its links. The net is a small one in NumPy, so that a
training of one epoch takes a second: 64 hidden units on images of Fashion-MNIST (28x28), or of CIFAR-10 averaged over
2x2 pixels (16x16x3).
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import simpy
from harness import SCRIPTS

from fdt.network import Cluster, reading
from fdt.network.transfers import run_until
from fdt.typing import Tensor
from nfdt import algorithms
from nfdt.algorithm import AlgorithmUpdate
from nfdt.server import EpochDone, Instruction
from nfdt.server.algorithm_state import AlgorithmState
from nfdt.server.scheduler import Scheduler
from nfdt.simulator.workers import SimulatedWorkers
from nfdt.transport import WorkerGradient
from tests.single.numpy_applier import PlainApplier

UNEQUAL = SCRIPTS.parent / "unequal12.yaml"
LOOKS = 5  # at the test rows, in an epoch
BATCH = 64
HIDDEN = 64
HELD_OUT = 10_000


@functools.cache
def described(text: str) -> Cluster:
    """Return the cluster of a file, or of a YAML text."""
    return reading.read_cluster(Path(text)) if text.endswith(".yaml") else reading.parse_cluster(text)


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how.

    Attributes:
        data: "fashion_mnist" or "cifar10".
        rate: learning rate.
        momentum: of SGD.
        decays: whether the rate is a tenth in the last 30 % of the updates, which are counted as one for each batch.
        rows: training rows that are used; None: all of them.
        held_out: test on training rows that are not trained on; the curve on test rows is `test_curve` then.
    """

    data: str = "fashion_mnist"
    rate: float = 0.02
    momentum: float = 0.9
    decays: bool = False
    rows: int | None = None
    held_out: bool = False


# -- net and data --------------------------------------------------------------------------------------------------
@functools.cache
def load(data: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images in [0, 1] as rows, labels, and the same of the test data."""
    import keras

    (x, y), (x_test, y_test) = getattr(keras.datasets, data).load_data()

    def rows(images: Tensor) -> Tensor:
        if images.ndim == 4:
            images = images.reshape(-1, 16, 2, 16, 2, 3).mean(axis=(2, 4))
        return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)

    return rows(x), y.ravel(), rows(x_test), y_test.ravel()


def initial_weights(inputs: int, rng: np.random.Generator) -> list[Tensor]:
    """Return Glorot's uniform kernels and zero biases, as in Keras."""
    weights: list[Tensor] = []
    for shape in ((inputs, HIDDEN), (HIDDEN, 10)):
        limit = math.sqrt(6 / sum(shape))
        weights += [rng.uniform(-limit, limit, shape).astype(np.float32), np.zeros(shape[1], np.float32)]
    return weights


def hidden_and_logits(weights: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    hidden = np.maximum(x @ weights[0] + weights[1], 0)
    return hidden, hidden @ weights[2] + weights[3]


def gradient(weights: Sequence[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the gradient of the mean cross-entropy."""
    hidden, logits = hidden_and_logits(weights, x)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    shares /= np.float32(len(y))
    back = (shares @ weights[2].T) * (hidden > 0)
    return [x.T @ back, back.sum(axis=0), hidden.T @ shares, shares.sum(axis=0)]


def accuracy(weights: Sequence[Tensor], x: Tensor, y: Tensor) -> float:
    """Return the accuracy in points; that of chance where a weight is not finite."""
    if not all(np.isfinite(w).all() for w in weights):
        return 10.0
    return 100 * float(np.mean(hidden_and_logits(weights, x)[1].argmax(axis=1) == y))


class Float32Applier(PlainApplier):
    """SGD on float32 weights, whose rate may decay after `decay_at` updates of one batch each."""

    def __init__(self, params: list[Tensor], recipe: Recipe, decay_at: float = math.inf) -> None:
        super().__init__(params, np.float32(recipe.rate), np.float32(recipe.momentum))  # type: ignore[arg-type]
        self._decay_at, self._updates = decay_at, 0

    def _apply(self, update: AlgorithmUpdate | None) -> bool:
        applied = super()._apply(update)
        self.params = [p.astype(np.float32, copy=False) for p in self.params]
        self._momentum = [m.astype(np.float32, copy=False) for m in self._momentum]
        self._updates += applied
        if self._updates == self._decay_at:
            self.eta = self.eta / np.float32(10)
        return applied


class Clock:
    """Workers of a cluster around a scheduler: a SimulatedServer of nfdt/simulator/workers.py.

    Args:
        cluster: nodes and links.
        scheduler: decides.
        epochs: passes over the data.
        seed: of the times of steps.
        nbytes: bytes of the weights, and of a gradient.
        gradient: returns the gradient of a batch by its number, from the weights in `Send.sent`, and its samples.
        pushed: called after each push; False ends the training.

    Attributes:
        busy_s: seconds of computation, by worker.
        pushes: by worker.
        arrivals: times of all pushes, in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        scheduler: Scheduler,
        epochs: int,
        seed: int,
        nbytes: int,
        gradient: Callable[[Any], tuple[Any, int]],
        pushed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._scheduler, self._epochs, self._nbytes = scheduler, epochs, nbytes
        self._gradient, self._pushed = gradient, pushed
        self._env = simpy.Environment()
        self._over = self._env.event()
        workers = SimulatedWorkers(self._env, cluster, 1, seed, self)
        count = len(cluster.workers)
        self._channels = [self._channel(worker) for worker in range(count)]
        self.busy_s, self.pushes = [0.0] * count, [0] * count
        self.arrivals: list[float] = []
        self.staleness = [0, 0]  # sum, pushes
        self._take(scheduler.start_epoch(0))
        workers.start()

    @property
    def now_s(self) -> float:
        """Simulated time in seconds."""
        return float(self._env.now)

    def run(self) -> None:
        """Run to the end of the last epoch, or until `pushed` returns False."""
        run_until(self._env, self._over)

    def idle(self) -> list[float]:
        """Return each worker's share of the time in which it did not compute."""
        return [1 - busy / self.now_s for busy in self.busy_s]

    # -- SimulatedServer -----------------------------------------------------------------------------------------
    def _channel(self, worker: int) -> Any:
        channel = SimpleNamespace(begin_pull=lambda: self._nbytes, begin_push=lambda gradient: self._nbytes)

        def ask() -> None:
            channel.arrived = self._env.event()
            self._take(self._scheduler.ask(worker))

        channel.ask, channel.answer = ask, lambda: channel.arrived.value
        return channel

    def channel(self, lane: int) -> Any:
        """Return a worker's channel."""
        return self._channels[lane]

    def leave(self, lane: int) -> None:
        """Remove a worker."""
        self._take(self._scheduler.leave(lane))

    def taken(self, lane: int) -> None:
        """Do nothing: no batch is kept."""

    def missing(self, weights: Any) -> int | None:
        """Return None: the number of batches is known."""
        return None

    def compute(self, lane: int, weights: Any, seconds: float) -> WorkerGradient:
        """Return the gradient."""
        self.busy_s[lane] += seconds
        found, samples = self._gradient(weights)
        return WorkerGradient(found, samples, seconds, batches=weights.batches)

    def push(self, lane: int, epoch: int, gradient: WorkerGradient) -> None:
        """Push a gradient."""
        self.pushes[lane] += 1
        self.arrivals.append(self.now_s)
        self._channels[lane].arrived = self._env.event()
        self._take(self._scheduler.push(lane, self.pushes[lane], gradient))
        if not self._pushed() and not self._over.triggered:
            self._over.succeed()

    def _take(self, instructions: Sequence[Instruction]) -> None:
        for said in instructions:
            if not isinstance(said, EpochDone):
                self._channels[said.worker].arrived.succeed(said)
                continue
            self.staleness[0] += sum(tau * count for tau, count in said.staleness.items())
            self.staleness[1] += said.steps
            if said.epoch + 1 < self._epochs:
                self._take(self._scheduler.start_epoch(said.epoch + 1))
            elif not self._over.triggered:
                self._over.succeed()


def timed(cluster: str, algorithm: str, steps: int, seed: int, nbytes: int = 0, epochs: int = 1) -> Clock:
    """Return the clock after epochs of `steps` batches of a single weight: times do not depend on the net."""
    nodes, applier = described(cluster), Float32Applier([np.zeros(1)], Recipe(rate=0.0, momentum=0.0))
    state = AlgorithmState(algorithms.make(algorithm), applier, len(nodes.workers))
    clock = Clock(nodes, Scheduler(state, steps), epochs, seed, nbytes, lambda sent: ([np.zeros(1)], 1))
    clock.run()
    return clock


def divided(recipe: Recipe) -> tuple[Tensor, Tensor, Tensor, list[list[Tensor]]]:
    """Return training images and labels, the rows that are trained on, and the images and labels of each curve."""
    x, y, *test = load(recipe.data)
    rows = np.random.default_rng(777).permutation(len(x))
    looked = [test]
    if recipe.held_out:
        rows, held = rows[:-HELD_OUT], rows[-HELD_OUT:]
        looked.insert(0, [x[held], y[held]])
    return x, y, rows[: recipe.rows], looked


def train(recipe: Recipe, cluster: str, algorithm: str, seed: int, epochs: int) -> dict[str, Any]:
    """Train and return the accuracy in points by epoch and simulated second, and each worker's idle share and pushes.

    Args:
        recipe: data, net and optimizer.
        cluster: a file, or a YAML text.
        algorithm: as for `--algorithm`.
        seed: of weights, order of rows, and times of steps.
        epochs: passes over the data.
    """
    nodes, rng = described(cluster), np.random.default_rng(seed)
    x, y, rows, looked = divided(recipe)
    steps = -(-len(rows) // BATCH)
    applier = Float32Applier(
        initial_weights(x.shape[1], rng), recipe, int(0.7 * steps * epochs) if recipe.decays else math.inf
    )
    orders = [rng.permutation(rows) for _ in range(epochs)]
    curves: list[list[tuple[float, float, float]]] = [[] for _ in looked]

    def pushed_gradient(sent: Any) -> tuple[Any, int]:
        own = orders[sent.epoch][sent.batches[0] * BATCH : (sent.batches[0] + 1) * BATCH]
        return gradient(sent.sent, x[own], y[own]), len(own)

    def pushed() -> bool:
        seen = len(clock.arrivals)
        if seen % max(1, steps // LOOKS) == 0 or seen == steps * epochs:
            for curve, on in zip(curves, looked, strict=True):
                curve.append((seen / steps, clock.now_s, accuracy(applier.params, *on)))
        return bool(np.isfinite(applier.params[0][0, 0]))

    state = AlgorithmState(algorithms.make(algorithm), applier, len(nodes.workers))
    nbytes = sum(w.nbytes for w in applier.params)
    clock = Clock(nodes, Scheduler(state, steps), epochs, seed, nbytes, pushed_gradient, pushed)
    with np.errstate(all="ignore"):
        clock.run()
    tau = clock.staleness[0] / max(1, clock.staleness[1])
    last = accuracy(applier.params, *looked[0])
    shares = {"idle": [round(i, 4) for i in clock.idle()], "pushes": clock.pushes, "tau": tau}
    return {"curve": curves[0], "test_curve": curves[-1], "accuracy": last, "simulated_s": clock.now_s, **shares}
