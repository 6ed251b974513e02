"""`fit` on a worker that takes batches in turns: its own batches count, others' are skipped, and all decide alike."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fdt.patches import patched
from nfdt.replica.fitting import FitHooks
from nfdt.replica.round_robin import RoundRobin


class Model(keras.Model):
    """Tells which batches its step was given."""

    def __init__(self, tell=lambda number: None):
        super().__init__()
        self._tell = tell
        self.traced = 0

    def train_step(self, data):
        self.traced += 1
        self._tell(int(data[0, 0]) if self.run_eagerly else -1)
        return {"given": data[0, 0]}


class Group:
    """Of worker 1 with a rank 0 that says the same every time."""

    rank, size = 1, 2

    def __init__(self, said=None, stops=()):
        self._said, self._stops = said or {}, iter(stops)

    def broadcast(self, value, name):
        return self._said

    def all_reduce(self, vector, name):
        return vector + next(self._stops, 0.0)


@contextlib.contextmanager
def fitting(model, turns, group=None, count=lambda rows: None):
    fits = FitHooks(turns, group or Group(), count, lambda: None)
    with patched(fits.patches("keras")):
        yield fits


@pytest.fixture
def turns():
    return RoundRobin(1, 2, lambda: None, lambda rows: None)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_worker_trains_on_every_other_batch(steps, turns):
    counted, seen = [], []
    model = Model(lambda number: seen.append((turns.now(), number)))
    model.compile(run_eagerly=True, steps_per_execution=steps)
    x = np.arange(9, dtype="float32")[:, None]
    with fitting(model, turns, count=counted.append) as fits, fits.in_turns(model):
        model.fit(x, batch_size=1, epochs=1, shuffle=False, verbose=0)
    mine = [i for i in range(9) if i // steps % 2]
    assert seen == [("others", i) for i in range(steps)] + [("mine", i) for i in mine]
    assert counted == [1] * len(mine)
    assert "train_step" not in vars(model) and "evaluate" not in vars(model)


def test_a_second_fit_begins_with_a_step_of_its_own_and_so_does_what_else_the_model_is_called_by(turns):
    seen = []
    model = Model(seen.append)
    model.compile(run_eagerly=True)
    with fitting(model, turns) as fits:
        for first in (0, 10):
            with fits.in_turns(model):
                history = model.fit(np.array([[first], [first + 1.0]]), batch_size=1, shuffle=False, verbose=0)
            assert history.history["given"] == [first + 1.0]
    assert seen == [0, 1, 10, 11]
    assert turns.call(model, ([], {}), lambda: "a step") == "a step"


def test_a_loop_of_fits_is_traced_once(turns):
    model = Model()
    model.compile()
    with fitting(model, turns) as fits:
        for _ in range(3):
            with fits.in_turns(model):
                model.fit(np.zeros((4, 1)), batch_size=1, verbose=0)
    assert model.traced == 1


def test_what_rank_0_logs_and_what_another_stops_is_so_for_all(turns):
    model, seen = Model(), []
    model.compile()
    see = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["given"]))
    group = Group({"given": 7.0}, stops=[0.0, 1.0])
    with fitting(model, turns, group) as fits, fits.in_turns(model):
        history = model.fit(np.zeros((4, 1)), batch_size=1, epochs=5, verbose=0, callbacks=[see])
    assert seen == history.history["given"] == [7.0, 7.0]
    assert model.stop_training


def test_a_step_that_tf_keras_rewrites_is_rewritten_here_too(turns):
    class Branches(tf_keras.Model):
        def train_step(self, data):
            if tf.reduce_sum(data) > 1:  # by autograph
                return {"large": 1.0}
            return {"large": 0.0}

    model = Branches()
    model.compile()
    fits = FitHooks(turns, Group(), lambda rows: None, lambda: None)
    with patched(fits.patches("tf_keras")), fits.in_turns(model):
        history = model.fit(np.array([[0.0], [2.0]]), batch_size=1, shuffle=False, verbose=0)
    assert history.history["large"] == [1.0]
