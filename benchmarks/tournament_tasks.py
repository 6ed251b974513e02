"""The tasks of tournament.py: data, a model, its optimizer and batch, and the mark that trainings are timed to."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import harness  # noqa: F401  the project is on the path with it
import numpy as np
from pictures import images

TESTED = 1_000  # rows of the test data


@dataclass(frozen=True)
class Task:
    """A training.

    Attributes:
        data: Returns (x, y), (x, y) for training and test.
        model: Returns a compiled Keras model.
        rows: Rows of training data that are used.
        batch: The script's batch size.
        epochs: Passes over these rows. After them all algorithms have seen equal samples.
        step_s: Seconds of a batch on a node of speed 1. It takes the place of the cluster files' own.
        every: Batches between two tests.
        mark: The accuracy that trainings are timed to.
    """

    data: Callable[[], Any]
    model: Callable[[], Any]
    rows: int
    batch: int
    epochs: int
    step_s: float
    every: int
    mark: float

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return -(-self.rows // self.batch)


def _compiled(model: Any, optimizer: Any) -> Any:
    import keras

    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def cnn() -> Any:
    """Return two convolutions and two dense layers, 6 thousand weights."""
    import keras
    from keras import layers

    convolved = [x for n in (8, 16) for x in (layers.Conv2D(n, 3, activation="relu"), layers.MaxPooling2D())]
    body = [*convolved, layers.Flatten(), layers.Dense(64, "relu"), layers.Dense(10)]
    return _compiled(keras.Sequential([keras.Input((14, 14, 1)), *body]), keras.optimizers.SGD(0.02, momentum=0.9))


def resnet20() -> Any:
    """Return the ResNet-20 of network.py, 270 thousand weights."""
    import sys

    import keras

    sys.path.append(str(harness.SCRIPTS))
    import networked

    return _compiled(networked.resnet20((32, 32, 3)), keras.optimizers.SGD(0.05, momentum=0.9))


def text() -> Any:
    """Return an embedding, its mean over the words, and two dense layers, 330 thousand weights."""
    import keras
    from keras import layers
    from tournament_text import CLASSES, WORDS

    body = [layers.Embedding(WORDS, 32), layers.GlobalAveragePooling1D(), layers.Dense(32, "relu")]
    inputs = keras.Input((None,), dtype="int32")
    return _compiled(keras.Sequential([inputs, *body, layers.Dense(len(CLASSES))]), keras.optimizers.Adam(3e-3))


def small_images() -> Any:
    """Return Fashion-MNIST at 14 x 14 pixels, each the mean of four: a step of the CNN then takes a millisecond."""
    return [(x.reshape(-1, 14, 2, 14, 2, 1).mean((2, 4)), y) for x, y in images("fashion_mnist")]


def sentences() -> Any:
    """Return the data of tournament_text.py."""
    from tournament_text import docstrings

    return docstrings()


TASKS = {
    "cnn": Task(small_images, cnn, 6_400, 32, 3, 0.02, 20, 0.65),
    "resnet20": Task(lambda: images("cifar10"), resnet20, 12_800, 64, 2, 0.2, 20, 0.35),
    "text": Task(sentences, text, 6_400, 32, 3, 0.01, 20, 0.75),
}


@cache
def load(name: str) -> tuple[Any, Any, Any, Any]:
    """Return training and test rows of a task."""
    (x, y), (tx, ty) = TASKS[name].data()
    return x[: TASKS[name].rows], y[: TASKS[name].rows], tx[:TESTED], ty[:TESTED]


def fresh(name: str, seed: int) -> Any:
    """Return the task's model with initial weights of `seed`."""
    import keras

    keras.utils.set_random_seed(seed)
    return TASKS[name].model()


class Tester:
    """The accuracy of a model on the test rows, by one compiled function."""

    def __init__(self, task: str, model: Any) -> None:
        import tensorflow as tf

        x, y = (tf.constant(a) for a in load(task)[2:])

        @tf.function(autograph=False)
        def accuracy() -> Any:
            found = tf.argmax(model(x, training=False), -1, y.dtype)
            return tf.reduce_mean(tf.cast(found == y, tf.float32))

        self._accuracy = accuracy

    def __call__(self) -> float:
        found = float(self._accuracy().numpy())
        return 0.0 if np.isnan(found) else found
