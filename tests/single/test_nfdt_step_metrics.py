"""Metric states in lock step, where a batch hook writes them: servers go on from what it wrote, or refuse it."""

import contextlib

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from fdt.blobs import LocalBlobs  # noqa: E402
from fdt.errors import UserError  # noqa: E402
from fdt.keras import named  # noqa: E402
from fdt.trainable import Trainable  # noqa: E402
from nfdt.server.job import StepMetrics  # noqa: E402
from nfdt.transport import WorkerGradient  # noqa: E402


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y, p, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(abs(y - p))))

    def result(self):
        return self.value


class Scaled(keras.Sequential):
    def compute_metrics(self, *args, **kwargs):
        return {name: 100 * value for name, value in super().compute_metrics(*args, **kwargs).items()}


@pytest.fixture
def blobs():
    with contextlib.closing(LocalBlobs.create()) as made:
        yield made


def step_metrics(blobs, kind=keras.Sequential, metrics=("mae",)):
    model = kind([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=list(metrics))
    model.train_on_batch(np.ones((2, 2), "float32"), np.ones((2, 1), "float32"))
    return StepMetrics(blobs, Trainable(named("keras"), model))


def push(blobs, found, worker, *states):
    ref = blobs.put_arrays([np.float32(s) for s in states])
    found.arrive(ref)
    found.read((worker, 0), WorkerGradient([], metrics=ref))


def total(blobs, found):
    return [float(a) for a in blobs.get_arrays(found.put_sum())]


def test_what_a_batch_hook_writes_is_where_workers_go_on(blobs):
    found = step_metrics(blobs)
    push(blobs, found, 0, 6.0, 2.0)
    push(blobs, found, 1, 4.0, 1.0)
    found.write(blobs.put_arrays([np.float32(0.0), np.float32(0.0)]))
    push(blobs, found, 0, 9.0, 3.0)
    assert total(blobs, found) == [3.0, 1.0]
    found.write(blobs.put_arrays([np.float32(5.0), np.float32(2.0)]))
    push(blobs, found, 1, 5.0, 2.0)
    assert total(blobs, found) == [6.0, 3.0]
    found.clear()
    push(blobs, found, 0, 1.0, 1.0)
    assert total(blobs, found) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "metrics", "state"),
    [(keras.Sequential, [Largest()], 1.0), (Scaled, ["mae"], 1.0), (keras.Sequential, ["mae"], np.inf)],
    ids=["a maximum", "logs of the script's own", "an infinite loss"],
)
def test_states_that_are_no_sums_cannot_be_written(blobs, kind, metrics, state):
    found = step_metrics(blobs, kind, metrics)
    push(blobs, found, 0, state, 2.0)
    with pytest.raises(UserError, match=r"a callback changed the states of metrics, as evaluate\(\) does"):
        found.write(blobs.put_arrays([np.float32(0.0), np.float32(0.0)]))
