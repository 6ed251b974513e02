"""The tasks of tournament.py: data, a network, its rate and batch, and the mark that trainings are timed to.

Weights and gradients are NumPy arrays, because algorithms run on them as they are (nfdt/algorithm.py): nothing is
traced, and a run of the small CNN takes a second. The gradients of ResNet-20 are TensorFlow's; others are written out.
"""

import gzip
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import harness
import numpy as np

TESTED = 1_000  # rows of the test data
Weights = list[Any]


@dataclass(frozen=True)
class Task:
    """A training by SGD with momentum.

    Attributes:
        data: Returns (x, y), (x, y) for training and test.
        network: Returns the network.
        rows: Rows of training data that are used.
        batch: The script's batch size.
        epochs: Passes over these rows. After them all algorithms have seen equal samples.
        rate: The script's learning rate.
        step_s: Seconds of a batch on a node of speed 1. It takes the place of the cluster files' own.
        mark: The accuracy that trainings are timed to.
    """

    data: Callable[[], Any]
    network: Callable[[], Any]
    rows: int
    batch: int
    epochs: int
    rate: float
    step_s: float
    mark: float
    momentum: float = 0.9
    every: int = 20  # batches between two tests

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return -(-self.rows // self.batch)


class SmallCnn:
    """Two convolutions, each pooled, and two dense layers: 6 thousand weights."""

    shapes = ((9, 8), (8,), (72, 16), (16,), (64, 64), (64,), (64, 10), (10,))

    def start(self, seed: int) -> Weights:
        """Return Glorot's uniform kernels and zero biases."""
        return uniform(self.shapes, seed)

    def gradient(self, w: Weights, x: Any, y: Any) -> Weights:
        """Return the gradient of the mean cross-entropy."""
        (p1, back1), n = _convolved(x, w[0], w[1]), len(x)
        p2, back2 = _convolved(p1, w[2], w[3])
        flat = p2.reshape(n, -1)
        hidden = np.maximum(flat @ w[4] + w[5], 0)
        top = _of_logits(hidden @ w[6] + w[7], y)
        below = (top @ w[6].T) * (hidden > 0)
        k2, b2, inner = back2((below @ w[4].T).reshape(p2.shape))
        k1, b1, _ = back1(inner)
        return [k1, b1, k2, b2, flat.T @ below, below.sum(0), hidden.T @ top, top.sum(0)]

    def accuracy(self, w: Weights, x: Any, y: Any) -> float:
        """Return the share of right rows."""
        inner = _convolved(_convolved(x, w[0], w[1])[0], w[2], w[3])[0].reshape(len(x), -1)
        found = np.maximum(inner @ w[4] + w[5], 0) @ w[6] + w[7]
        return float(np.mean(np.argmax(found, 1) == y))


def uniform(shapes: Sequence[tuple[int, ...]], seed: int) -> Weights:
    """Return Glorot's uniform matrices and zero vectors."""
    rng = np.random.default_rng(seed)
    limits = [np.sqrt(6 / sum(shape)) if len(shape) == 2 else 0.0 for shape in shapes]
    return [rng.uniform(-a, a, s).astype(np.float32) for a, s in zip(limits, shapes, strict=True)]


def _of_logits(logits: Any, y: Any) -> Any:
    """Return the gradient of the mean cross-entropy by the logits."""
    e = np.exp(logits - logits.max(1, keepdims=True))
    found = e / e.sum(1, keepdims=True)
    found[np.arange(len(y)), y] -= 1
    found /= len(y)
    return found


def _convolved(x: Any, kernel: Any, bias: Any) -> tuple[Any, Callable[[Any], tuple[Any, Any, Any]]]:
    """Return a 3 x 3 convolution of rows x height x width x channels, pooled 2 x 2, with ReLU; and its gradients."""
    n, height, width, channels = x.shape
    view = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
    columns = view.reshape(n * (height - 2) * (width - 2), -1)
    blocks = (n, (height - 2) // 2, 2, (width - 2) // 2, 2, kernel.shape[1])
    full = (columns @ kernel + bias).reshape(blocks)
    pooled = full.max((2, 4), keepdims=True)
    chosen = (full == pooled) & (pooled > 0)

    def back(above: Any) -> tuple[Any, Any, Any]:
        spread = (chosen * above[:, :, None, :, None]).reshape(len(columns), -1)
        inner = np.zeros_like(x)
        taps = (spread @ kernel.T).reshape(n, height - 2, width - 2, channels, 3, 3)
        for i in range(3):
            for j in range(3):
                inner[:, i : i + height - 2, j : j + width - 2] += taps[..., i, j]
        return columns.T @ spread, spread.sum(0), inner

    return np.maximum(pooled[:, :, 0, :, 0], 0), back


class MeanOfWords:
    """An embedding of words, its mean over a row, and two dense layers: 160 thousand weights."""

    def __init__(self) -> None:
        from tournament_text import CLASSES, WORDS

        self.shapes = ((WORDS, 32), (32, 32), (32,), (32, len(CLASSES)), (len(CLASSES),))

    def start(self, seed: int) -> Weights:
        """Return words in the range of 0.5, with which training needs no long start, Glorot's kernels, zero biases."""
        first, *others = uniform(self.shapes, seed)
        return [first * np.float32(0.5 / np.sqrt(6 / sum(self.shapes[0]))), *others]

    def gradient(self, w: Weights, x: Any, y: Any) -> Weights:
        """Return the gradient of the mean cross-entropy."""
        known, mean, hidden, top = self._forward(w, x)
        top = _of_logits(top, y)
        below = (top @ w[3].T) * (hidden > 0)
        words = np.zeros_like(w[0])
        each = (below @ w[1].T) / known.sum(1)
        np.add.at(words, x, each[:, None, :] * known)
        return [words, mean.T @ below, below.sum(0), hidden.T @ top, top.sum(0)]

    def accuracy(self, w: Weights, x: Any, y: Any) -> float:
        """Return the share of right rows."""
        return float(np.mean(np.argmax(self._forward(w, x)[-1], 1) == y))

    def _forward(self, w: Weights, x: Any) -> tuple[Any, Any, Any, Any]:
        known = (x > 0)[..., None].astype(np.float32)  # 0 is padding
        mean = (w[0][x] * known).sum(1) / known.sum(1)
        hidden = np.maximum(mean @ w[1] + w[2], 0)
        return known, mean, hidden, hidden @ w[3] + w[4]


class KerasNetwork:
    """A Keras model. Gradients and accuracy are compiled.

    BatchNormalization has the statistics of its batch in tests, too: moving averages would be of all trainings before,
    and at their start in the first hundred batches.
    """

    def __init__(self, make: Callable[[], Any], example: Any) -> None:
        import keras
        import tensorflow as tf

        self._make, self._example, self.model = make, example, make()
        self.model(example)
        self._variables = [v.value for v in self.model.trainable_variables]
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.function(autograph=False)
        def gradient(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(y, self.model(x, training=True))
            return [tf.convert_to_tensor(g) for g in tape.gradient(loss, self._variables)]

        @tf.function(autograph=False)
        def accuracy(x: Any, y: Any) -> Any:
            return tf.reduce_mean(tf.cast(tf.argmax(self.model(x, training=True), -1, y.dtype) == y, tf.float32))

        self._gradient, self._accuracy = gradient, accuracy

    def start(self, seed: int) -> Weights:
        """Return initial weights."""
        import keras

        keras.utils.set_random_seed(seed)
        model = self._make()
        model(self._example)
        return [v.numpy() for v in model.trainable_variables]

    def _assign(self, w: Weights) -> None:
        for variable, value in zip(self._variables, w, strict=True):
            variable.assign(value)

    def gradient(self, w: Weights, x: Any, y: Any) -> Weights:
        """Return the gradient of the mean cross-entropy."""
        self._assign(w)
        return [g.numpy() for g in self._gradient(x, y)]

    def accuracy(self, w: Weights, x: Any, y: Any) -> float:
        """Return the share of right rows."""
        self._assign(w)
        return float(np.mean([self._accuracy(x[i : i + 250], y[i : i + 250]) for i in range(0, len(x), 250)]))


def resnet20() -> KerasNetwork:
    """Return the ResNet-20 of network.py for 16 x 16 pixels, 270 thousand weights."""
    import sys

    sys.path.append(str(harness.SCRIPTS))
    import networked

    return KerasNetwork(lambda: networked.resnet20((16, 16, 3)), np.zeros((1, 16, 16, 3), np.float32))


def small_photos() -> Any:
    """Return CIFAR-10 at 16 x 16 pixels, each the mean of four."""
    from pictures import images

    return [(x.reshape(-1, 16, 2, 16, 2, 3).mean((2, 4)), y) for x, y in images("cifar10")]


def small_images() -> Any:
    """Return Fashion-MNIST at 14 x 14 pixels, each the mean of four. Files that Keras has stored need no TensorFlow."""
    folder = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "datasets/fashion-mnist"
    if not folder.exists():
        from pictures import images

        images("fashion_mnist")
    return [
        (_small(folder / f"{kind}-images-idx3-ubyte.gz"), _idx(folder / f"{kind}-labels-idx1-ubyte.gz", 8))
        for kind in ("train", "t10k")
    ]


def _idx(file: Path, offset: int) -> Any:
    return np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=offset)


def _small(file: Path) -> Any:
    return (_idx(file, 16).reshape(-1, 14, 2, 14, 2, 1).mean((2, 4)) / 255).astype(np.float32)


def sentences() -> Any:
    """Return the data of tournament_text.py."""
    from tournament_text import docstrings

    return docstrings()


TASKS = {
    "cnn": Task(small_images, SmallCnn, 6_400, 32, 2, 0.02, 0.02, 0.55),
    "resnet20": Task(small_photos, resnet20, 6_400, 64, 3, 0.05, 0.2, 0.35),
    "text": Task(sentences, MeanOfWords, 6_400, 32, 3, 0.2, 0.01, 0.70),
}


@cache
def load(name: str) -> tuple[Any, Any, Any, Any]:
    """Return training and test rows of a task."""
    (x, y), (tx, ty) = TASKS[name].data()
    return x[: TASKS[name].rows], y[: TASKS[name].rows], tx[:TESTED], ty[:TESTED]


@cache
def network(name: str) -> Any:
    """Return the network of a task, once."""
    return TASKS[name].network()


def nbytes_of(task: str) -> int:
    """Return the bytes of a task's weights, which are those of its gradients and of the optimizer's slots."""
    return sum(w.nbytes for w in network(task).start(0))
