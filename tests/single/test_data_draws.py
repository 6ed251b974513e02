"""A generator passed to `fit` is drawn as often as by Keras alone: the next `fit` begins with the same batch."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from client_shim.capture.data import FEED, FitValidation, capture_data
from fdt.blobs import LocalBlobs
from fdt.data import Feed, open_source
from fdt.job import FitArguments

STEPS, EPOCHS = 3, 2
FIT = {"steps_per_epoch": STEPS, "epochs": EPOCHS}


class Batches:
    """A generator's, which count."""

    def __init__(self):
        self.drawn, self._drew = 0, threading.Condition()
        self.generator = self._draw()

    def _draw(self):
        while True:
            with self._drew:
                self.drawn += 1
                self._drew.notify_all()
            yield np.full((2, 1), self.drawn - 1, "float32"), np.zeros((2, 1), "float32")

    def wait(self, count):
        with self._drew:
            assert self._drew.wait_for(lambda: self.drawn >= count, 60)


@pytest.fixture
def alone(monkeypatch):
    """Two fits of Keras's own. A prefetch that has found its size is one batch ahead: it is given that size here."""

    def run():
        monkeypatch.setattr(tf.data, "AUTOTUNE", 1)
        batches, firsts, draws = Batches(), [], []
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", lambda true, predicted: tf.reduce_mean(predicted))
        for _ in range(2):
            firsts.append(batches.drawn)
            until = batches.drawn + STEPS * EPOCHS + 1
            at_end = keras.callbacks.LambdaCallback(on_train_end=lambda logs, n=until: batches.wait(n))
            model.fit(batches.generator, **FIT, verbose=0, callbacks=[at_end])
            draws.append(batches.drawn)
        return firsts, draws

    return run


class Line:
    """Client and workers in one process."""

    def __init__(self, captured, blobs, ranks=2):
        self.feeder = captured.start_feeder(self, blobs, "job")
        self._feeds = [Feed(FEED, blobs, self.feeder.wanted) for _ in range(ranks)]
        self.sources = [
            open_source(captured.train, FitArguments(**FIT), blobs, 0, training=True, feed=f) for f in self._feeds
        ]

    def send(self, command):
        for feed in self._feeds:
            feed.offer(command.feed)
        if command.feed.end:  # the workers end the epoch, and the client hears of it
            threading.Thread(target=self.feeder.finish_epoch, args=[command.feed.epoch]).start()


def hfdts(sources):
    """Each rank its part of every batch."""
    sources[0].first_batch()
    for epoch in range(EPOCHS):
        parts = [iter(source.slices(epoch, rank, 2)) for rank, source in enumerate(sources)]
        yield from (int(part[0][0][0, 0]) for *_, part in zip(*parts, strict=True))


def nfdts(sources):
    """A worker its whole batches."""
    for epoch in range(EPOCHS):
        reader = sources[0].reader(epoch)
        yield from (int(reader(index)[0][0, 0]) for index in range(STEPS))


def drawn(flavor, engine, tmp_path):
    """By two fits of ours: the first batch of each, and how many had been drawn behind it."""
    batches, validating, firsts, draws = Batches(), Batches(), [], []
    blobs = LocalBlobs(tmp_path)
    for _ in range(2):
        given = {"validation": FitValidation(validating.generator, steps=2), "model": None}
        captured = capture_data(flavor, blobs, batches.generator, **FIT, **given)
        line = Line(captured, blobs)
        seen = list(engine(line.sources))
        line.feeder._thread.join(60)
        line.feeder.stop()
        assert seen == list(range(seen[0], seen[0] + STEPS * EPOCHS))
        firsts.append(seen[0])
        draws.append(batches.drawn)
        assert captured.validation is None and captured.validation_data is validating.generator
    assert validating.drawn == 0, "Keras's own evaluate draws these"
    return firsts, draws


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # fit's default
@pytest.mark.parametrize("engine", [hfdts, nfdts])
def test_two_fits_in_a_row_draw_as_often_as_alone(tmp_path, alone, engine):
    assert drawn("keras", engine, tmp_path) == alone()


def test_a_fit_of_tf_keras_is_two_batches_ahead(tmp_path):
    assert drawn("tf_keras", hfdts, tmp_path) == ([0, 8], [8, 16])


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # fit's default
def test_a_fit_that_an_earlier_run_has_trained_draws_as_often_as_alone(tmp_path, alone):
    batches = Batches()
    captured = capture_data("keras", LocalBlobs(tmp_path), batches.generator, **FIT, model=None)
    captured.feed.skip(EPOCHS)
    assert batches.drawn == alone()[1][0]
