"""Trainings of the LeNets of source D: an algorithm of rounds over ranks in one process, and one machine alone.

Gradients and averages are real and pass through HFDT's own session; ranks are threads, so nothing is said about time.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

BATCH, RATE, MOMENTUM = 100, 0.02, 0.9
ROWS = 50_000  # of training, as in the source; MNIST's other 10,000 are held out
LOOK = 50  # batches between two looks at the first epochs of one machine
PAIRS = (("mnist", "lenet3"), ("mnist", "lenet5"), ("cifar10", "lenet3"), ("cifar10", "lenet5"))


@dataclass(frozen=True)
class Training:
    """What is trained. `rows`: fewer than ROWS for a quick look; `rate`: of one machine."""

    data: str
    net: str
    algorithm: str
    workers: int
    rounds: int
    seed: int
    rows: int = ROWS
    rate: float = RATE


def network(data: str, net: str, seed: int, rate: float = RATE) -> Any:
    """Return the compiled net. On 28 x 28 the first convolution is padded, which equals the source's 32 x 32 input."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(seed + 1)
    shape, padding = ((28, 28, 1), "same") if data == "mnist" else ((32, 32, 3), "valid")
    body = [layers.Conv2D(6, 5, padding=padding, activation="relu"), layers.MaxPooling2D()]
    if net == "lenet5":
        body += [layers.Conv2D(16, 5, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
        body += [layers.Dense(120, "relu"), layers.Dense(84, "relu")]
    else:  # three layers with weights
        body += [layers.Flatten(), layers.Dense(120, "relu")]
    model = keras.Sequential([keras.Input(shape), *body, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, momentum=MOMENTUM), loss, metrics=["accuracy"])
    return model


def weight_bytes(data: str, net: str) -> int:
    return sum(4 * int(np.prod(v.shape)) for v in network(data, net, 0).trainable_variables)


def rows_of(data: str, rows: int) -> tuple[Any, Any, dict[str, Any]]:
    """Return the training rows, their labels, and what is looked at: test rows, and MNIST's held-out ones."""
    from pictures import images

    (x, y), (tx, ty) = images(data)
    looked = {"test": (tx[:rows], ty[:rows])}
    if len(x) > ROWS:
        looked["held_out"] = (x[ROWS : ROWS + rows], y[ROWS : ROWS + rows])
    return x[:rows], y[:rows], looked


def look(model: Any, x: Any, y: Any) -> tuple[float, float]:
    """Return (accuracy, mean loss)."""
    import tensorflow as tf

    logits = np.concatenate([model(x[i : i + 1000], training=False) for i in range(0, len(x), 1000)])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    return round(float(np.mean(np.argmax(logits, axis=1) == y)), 4), round(float(np.mean(losses)), 5)


def by_round(training: Training) -> dict[str, list[float]]:
    """Return accuracy and loss on each set of rows after each round."""
    from fdt.keras import flavor_of
    from fdt.trainable import Trainable
    from hfdt.worker.session import RankProgram, patches
    from tests.in_process_comm import on_ranks

    x, y, looked = rows_of(training.data, training.rows)
    models = [network(training.data, training.net, training.seed) for _ in range(training.workers)]
    flavor = flavor_of(models[0])
    options = {"rule": training.algorithm, "batch": "per-worker", "lr_scale": "none"}
    with patches(flavor.name), opened(flavor, models, training, x, y) as source:

        def rank(comm: Any) -> dict[str, list[float]]:
            with contextlib.closing(RankProgram(Trainable(flavor, models[comm.rank]), comm, options)) as session:
                session.prepare(source(), None)
                own, found = source(), Looks(looked)
                for epoch in range(training.rounds):
                    session.train(own, epoch, lambda step, logs: True)
                    if comm.rank == 0:
                        found.add(models[0])
                return found.figures

        return on_ranks(training.workers, rank, wait_s=36_000.0)[0]


@contextlib.contextmanager
def opened(flavor: Any, models: list[Any], training: Training, x: Any, y: Any) -> Iterator[Callable[[], Any]]:
    from client_shim.capture.data import capture_data
    from fdt.blobs import LocalBlobs
    from fdt.data import open_source
    from fdt.job import FitArguments

    with contextlib.closing(LocalBlobs.create()) as blobs:
        held = capture_data(flavor.name, blobs, x, y, batch_size=BATCH)
        for model in models:
            if not flavor.built(model):
                flavor.build(model, held.spec)
        fit = FitArguments(batch_size=BATCH, epochs=training.rounds)
        yield lambda: open_source(held.train, fit, blobs, 7 + training.seed, training=True, flavor=flavor.name)


class Looks:
    """Accuracy and loss on several sets of rows, as they were at several times."""

    def __init__(self, looked: dict[str, Any]) -> None:
        self._looked = looked
        self.figures: dict[str, list[float]] = {f"{n}_{what}": [] for n in looked for what in ("accuracy", "loss")}

    def add(self, model: Any) -> None:
        for name, (x, y) in self._looked.items():
            accuracy, loss = look(model, x, y)
            self.figures[f"{name}_accuracy"].append(accuracy)
            self.figures[f"{name}_loss"].append(loss)


def alone(training: Training, mark: float) -> dict[str, Any]:
    """Train on one machine, with a tenth of the rate in the last three tenths; return figures by epoch.

    `batches_to_mark`: until the test accuracy reaches `mark`, by looks every LOOK batches; None where it does not.
    """
    import keras

    x, y, looked = rows_of(training.data, training.rows)
    model = network(training.data, training.net, training.seed, training.rate)
    found, reached = Looks(looked), None

    class Watch(keras.callbacks.Callback):
        seen = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == round(0.7 * training.rounds):
                self.model.optimizer.learning_rate.assign(training.rate / 10)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            nonlocal reached
            self.seen += 1
            if reached is None and self.seen % LOOK == 0 and look(self.model, *looked["test"])[0] >= mark:
                reached = self.seen

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            found.add(self.model)

    model.fit(x, y, batch_size=BATCH, epochs=training.rounds, verbose=0, callbacks=[Watch()])
    return {**found.figures, "batches_to_mark": reached}
