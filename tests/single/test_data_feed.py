"""Batches that the client draws: as many as requested, in Keras's order, divided among ranks like any others."""

import threading
from types import SimpleNamespace

import keras
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf
import tf_keras

from client_shim.capture.data import FEED, FitValidation, capture_data
from client_shim.feed import Feeder
from fdt.blobs import LocalBlobs
from fdt.data import Feed, first_batch_checksum, open_source
from fdt.data.epochs import DrawnEpochs
from fdt.errors import WorkerError
from fdt.job import FEED_WINDOW, FeedData, FitArguments
from fdt.rpc import job_pb2
from fdt.rpc.session_pb2 import FeedWanted

X = np.arange(30, dtype="float32").reshape(10, 3)


@pytest.fixture
def blobs(tmp_path):
    return LocalBlobs(tmp_path)


class Line:
    """Client and workers in one process, an engine of nothing between them."""

    def __init__(self, blobs, captured, ranks=1, **fit):
        self.commands, self.wanted = [], []
        self.feeder = captured.start_feeder(self, blobs, "job")
        self.cancelled = threading.Event()
        self.feeds = [Feed(FEED, blobs, self._want) for _ in range(ranks)]
        fit = FitArguments(**fit)
        self.sources = [open_source(captured.train, fit, blobs, 0, training=True, feed=feed) for feed in self.feeds]

    def _want(self, wanted):
        self.wanted.append(wanted.up_to)
        self.feeder.wanted(wanted)

    def send(self, command):
        self.commands.append(command)
        for feed in self.feeds:
            feed.offer(command.feed)
        if command.feed.end:  # the workers end the epoch, and the client hears of it
            threading.Thread(target=self.feeder.finish_epoch, args=[command.feed.epoch]).start()

    def cancel(self):
        self.cancelled.set()
        for feed in self.feeds:
            feed.close()


class Sequence(keras.utils.PyDataset):
    def __init__(self, **keywords):
        super().__init__(**keywords)
        self.ended = 0

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X[index * 3 : index * 3 + 3], np.arange(3)[: 10 - index * 3]

    def on_epoch_end(self):
        self.ended += 1


def generator(count=None):
    index = 0
    while count is None or index < count:
        yield X + index, np.full(10, index)
        index += 1


def firsts(source, epoch):
    return [float(batch[0][0, 0]) for batch, _ in source.slices(epoch, 0, 1)]


def test_a_py_dataset_is_drawn_as_keras_draws_it(blobs):
    sequence = Sequence()
    captured = capture_data("keras", blobs, sequence, shuffle=False, epochs=2)
    assert isinstance(captured.train, FeedData) and captured.train.steps == 4
    line = Line(blobs, captured)
    for epoch in range(2):
        batches = [batch for batch, _ in line.sources[0].slices(epoch, 0, 1)]
        npt.assert_array_equal(np.concatenate([x for x, _ in batches]), X)
        assert [y.dtype for _, y in batches] == [tf.int64] * 4
        line.feeder.finish_epoch(epoch)
    line.feeder.stop()
    assert sequence.ended == 1 + 2  # Keras's fit resets its loop before it begins


def test_an_epoch_is_over_when_the_scripts_data_have_seen_its_end(blobs):
    go_on = threading.Event()

    class Slow(Sequence):
        def on_epoch_end(self):
            assert self.ended == 0 or go_on.wait(60)  # the first call is that of Keras's reset
            super().on_epoch_end()

    sequence = Slow()
    line = Line(blobs, capture_data("keras", blobs, sequence, shuffle=False))
    assert line.sources[0].count(0) == 4
    line.feeder.finish_epoch(0)  # the workers have not asked for all of it
    batches = iter(line.sources[0].slices(0, 0, 1))  # kept: the end of an iterator may wait for the end of the epoch
    for _ in range(4):
        next(batches)
    threading.Timer(0.2, go_on.set).start()
    line.feeder.finish_epoch(0)
    assert sequence.ended == 2
    line.feeder.stop()


def test_workers_of_a_py_dataset_are_keras_own(blobs):
    line = Line(blobs, capture_data("keras", blobs, Sequence(workers=2), shuffle=False))
    assert firsts(line.sources[0], 0) == [0, 9, 18, 27]
    line.feeder.stop()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_ranks_together_have_the_batch(blobs, size):
    line = Line(blobs, capture_data("keras", blobs, Sequence(), shuffle=False), ranks=size)
    ranks = [iter(source.slices(0, rank, size)) for rank, source in enumerate(line.sources)]
    for index, parts in enumerate(zip(*ranks, strict=True)):
        together = np.concatenate([x[: share[0]] for (x, _), share in parts])
        npt.assert_array_equal(together, X[index * 3 : index * 3 + 3])
        assert all(len(x) for (x, _), _ in parts)
    assert index == 3
    line.feeder.stop()


def test_a_generator_goes_on_over_epochs(blobs):
    captured = capture_data("keras", blobs, generator(), steps_per_epoch=3, epochs=3, initial_epoch=1)
    line = Line(blobs, captured, steps_per_epoch=3, epochs=3, initial_epoch=1)
    assert line.sources[0].steps == 3
    assert [firsts(line.sources[0], epoch) for epoch in (1, 2)] == [[0, 1, 2], [3, 4, 5]]
    line.feeder.stop()


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_generator_that_ends_ends_the_epoch(blobs):
    line = Line(blobs, capture_data("keras", blobs, generator(5)))
    assert line.sources[0].steps is None
    assert firsts(line.sources[0], 0) == [0, 1, 2, 3, 4]
    line.feeder.stop()


def test_no_more_is_sent_than_was_asked_for(blobs):
    captured = capture_data("keras", blobs, generator(), steps_per_epoch=100)
    line = Line(blobs, captured)
    reader = line.sources[0].reader(0)
    assert float(reader(2)[0][0, 0]) == 2
    reader(FEED_WINDOW + 2)
    assert line.wanted == [FEED_WINDOW, FEED_WINDOW + 3, 2 * FEED_WINDOW + 3]
    line.feeder.stop()
    line.feeder._thread.join(60)  # `stop` waits a second for a batch that is being drawn
    assert len(line.commands) <= 2 * FEED_WINDOW + 3
    assert list(blobs.directory.iterdir()) == [blobs.directory / captured.train.spec.id]


def test_the_first_batch_can_be_looked_at_and_is_still_there(blobs):
    line = Line(blobs, capture_data("keras", blobs, Sequence(), shuffle=False))
    assert len(first_batch_checksum(line.sources[0])) == 16
    assert firsts(line.sources[0], 0) == [0, 9, 18, 27]
    line.feeder.stop()


def test_a_pipeline_that_cannot_be_rebuilt_is_drawn_by_the_client(blobs):
    dataset = tf.data.Dataset.range(6).map(lambda i: tf.numpy_function(lambda v: v * 2, [i], tf.int64))
    dataset = dataset.map(lambda i: tf.ensure_shape(i, [])).batch(2)
    captured = capture_data("keras", blobs, dataset, epochs=2)
    assert "PyFunc" in captured.facts.note
    line = Line(blobs, captured)
    for epoch in range(2):
        assert [batch.numpy().tolist() for batch, _ in line.sources[0].slices(epoch, 0, 1)] == [[0, 2], [4, 6], [8, 10]]
    line.feeder.stop()


def test_tf_keras_draws_with_its_own_loop(blobs):
    class Old(tf_keras.utils.Sequence):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return Sequence()[index]

    line = Line(blobs, capture_data("tf_keras", blobs, Old(), shuffle=False, class_weight={0: 1.0, 1: 2.0, 2: 4.0}))
    (x, y, weight), _ = next(iter(line.sources[0].slices(0, 0, 1)))
    assert (y.numpy().tolist(), weight.numpy().tolist()) == ([0, 1, 2], [1, 2, 4])
    line.feeder.stop()


def test_what_the_scripts_data_raise_is_raised_where_fit_was_called(blobs):
    def broken():
        yield from generator(3)
        raise ZeroDivisionError("mine")

    line = Line(blobs, capture_data("keras", blobs, broken()))
    with pytest.raises(Exception, match="the job ended before"):
        firsts(line.sources[0], 0)
    assert line.cancelled.is_set()
    with pytest.raises(Exception, match="mine"):
        line.feeder.stop()


def test_a_batch_that_is_drawn_while_the_job_ends_leaves_no_blob(blobs, tmp_path, monkeypatch):
    monkeypatch.setattr("client_shim.feed.STOP_S", 0.01)
    drawing, go_on, sent = threading.Event(), threading.Event(), []

    def slow():
        drawing.set()
        go_on.wait(60)
        yield tf.constant(X)

    feeder = Feeder(FEED, lambda: iter([(0, slow())]), SimpleNamespace(send=sent.append), blobs, "job")
    feeder.wanted(FeedWanted(name=FEED, epoch=0, up_to=1))
    assert drawing.wait(60)
    feeder.stop()
    go_on.set()
    feeder._thread.join(60)
    assert not sent
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("generator", [np.random, np.random.default_rng(0)])
def test_discarded_epochs_show_whether_batches_draw_from_a_global_generator(blobs, generator):
    """Epochs 1 and 2 of a resumed `fit`, of which the second one is discarded, too."""
    go_on = threading.Event()

    def batches(epoch):
        go_on.wait(60)
        yield tf.constant(generator.normal(size=epoch))

    feeder = Feeder(FEED, lambda: ((epoch, batches(epoch)) for epoch in (1, 2, 3)), None, blobs, "job", first=3)
    threading.Timer(0.01, go_on.set).start()
    assert feeder.generators_used() == (["numpy"] if generator is np.random else [])
    feeder.stop()


def test_a_closed_feed_wakes_who_waits(blobs):
    feed = Feed("x", blobs, lambda _: None)
    threading.Timer(0.01, feed.close).start()
    with pytest.raises(WorkerError, match="the job ended before"):
        feed.take(0, 0)


@pytest.mark.parametrize("begun", [0, 1])
def test_epochs_end_with_data_whose_length_keras_knows(blobs, begun):
    """The batches of three rows and one: a pass of four, three steps an epoch, which one of a resumed `fit` begins."""
    captured = capture_data("keras", blobs, Sequence(), steps_per_epoch=3, epochs=5, initial_epoch=1)
    counts = [open_source(captured.train, FitArguments(initial_epoch=1 + begun), blobs, 0, training=True, feed=Feed(
        FEED, blobs, lambda _: None)).count(epoch) for epoch in range(1, 5)]  # fmt: skip
    assert len(Sequence()) == 4 and counts == [3, 1, 3, 1]


def test_a_pass_that_ends_early_is_followed_by_a_new_one():
    """Five batches, two an epoch: in a pass of three the second epoch has one, and Keras begins the next pass."""
    epochs = DrawnEpochs(FeedData(FEED, 2, length=5, first_epoch=1))
    assert [epochs.count(epoch) for epoch in range(1, 5)] == [2, 2, 1, 2]
    assert not epochs.over(1, 2)
    assert epochs.over(2, 1)
    assert [epochs.count(epoch) for epoch in range(3, 7)] == [2, 2, 1, 2]
    assert DrawnEpochs(FeedData(FEED, 2, length=10**10)).count(0) == 2
    assert job_pb2.FeedData(length=10**10, first_epoch=-1).length == 10**10


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_generator_that_runs_out_within_an_epoch_is_noted(blobs):
    captured = capture_data("keras", blobs, ((X, X) for _ in range(3)), steps_per_epoch=2, epochs=2)
    line = Line(blobs, captured)
    assert len(firsts(line.sources[0], 0)) == 2 and not line.feeder.ran_out
    assert len(firsts(line.sources[0], 1)) == 1 and line.feeder.ran_out
    line.feeder.stop()


def test_none_for_weights_is_as_if_there_were_none(blobs):
    def three():
        for _ in range(3):
            yield X, np.arange(10), None

    captured = capture_data("keras", blobs, three(), steps_per_epoch=2)
    assert len(captured.spec) == 2
    line = Line(blobs, captured)
    assert firsts(line.sources[0], 0) == [0, 0]
    line.feeder.stop()


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_ragged_and_sparse_batches_are_drawn_and_cut(blobs, kind):
    rows = [[1], [2, 3], [], [4, 5, 6], [7]]
    ragged = tf.ragged.constant(rows, dtype=tf.int64)
    batch = ragged if kind == "ragged" else ragged.to_sparse()
    spec = tf.data.Dataset.from_tensor_slices(batch).batch(5).element_spec
    dataset = tf.data.Dataset.from_generator(lambda: iter([batch]), output_signature=spec)
    captured = capture_data("keras", blobs, dataset, steps_per_epoch=1)
    assert isinstance(captured.train, FeedData)
    line = Line(blobs, captured, ranks=2)
    whole = line.sources[0].first_batch()
    dense = whole.to_tensor() if kind == "ragged" else tf.sparse.to_dense(whole)
    npt.assert_array_equal(dense, ragged.to_tensor())
    parts = [next(iter(source.slices(0, rank, 2))) for rank, source in enumerate(line.sources)]
    assert [share.numpy().tolist() for _, share in parts] == [[2, 5], [3, 5]]
    cut = [part.to_tensor(shape=[None, 3]) if kind == "ragged" else tf.sparse.to_dense(part) for part, _ in parts]
    npt.assert_array_equal(np.concatenate(cut), ragged.to_tensor())
    line.feeder.stop()


def test_validation_that_only_the_client_can_draw_stays_there(blobs):
    captured = capture_data("keras", blobs, X, validation=FitValidation(Sequence()))
    assert captured.validation is None
    assert captured.validation_data is not None
