"""The input of a script's own loops: a rank maps only its rows, and every value that the script reads is that alone."""

import contextlib
import re
import threading

import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf

from fdt.errors import WorkerError
from fdt.process_group import Collectives
from replica.engine import PlacementEngine
from replica.exchange import GroupedExchange
from replica.placement import Shard, divided
from replica.tensors import local_array

N = 37
X = np.random.default_rng(0).random((N, 3)).astype("float32")
Y = np.arange(N)


class Rank(Collectives):
    """One rank of a group without others: a collective is an error."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def broadcast(self, value, name):
        raise AssertionError(f"collective {name}")

    def _whole(self, combined, name):
        raise AssertionError(f"collective {name}")


@contextlib.contextmanager
def as_rank(rank, size):
    engine = PlacementEngine(GroupedExchange(Rank(rank, size)), lambda: None)
    with engine.installed():
        yield engine


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def double(x, y):
    return x * 2, y + 1


def named(x, y):
    return {"b": x, "a": y * 2}, tf.cast(y % 3, tf.int32)


def noisy(x, y):
    return x + tf.random.uniform([3]), y


def checked(x, y):
    index = tf.where(y == 20, tf.constant(99, tf.int64), y)  # too large for row 20
    return x, tf.ensure_shape(tf.gather(Y, index), [])


def as_text(x, y):
    return x, tf.strings.as_string(y)


PIPELINES = {
    "plain": lambda: rows().map(double).batch(8),
    "shuffled and prefetched": lambda: rows().shuffle(20, seed=1).map(double, 2).batch(8).prefetch(2),
    "repeated": lambda: rows().shuffle(20, seed=3).repeat(2).map(named).batch(8, drop_remainder=True),
    "one batch": lambda: rows().take(5).map(double).map(double).batch(64),
}
PIPELINES = [pytest.param(make, id=name) for name, make in PIPELINES.items()]


def flat(batches):
    return [tf.nest.map_structure(np.array, batch) for batch in batches]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for left, right in zip(ours, theirs, strict=True):
        tf.nest.assert_same_structure(left, right)
        for a, b in zip(tf.nest.flatten(left), tf.nest.flatten(right), strict=True):
            npt.assert_array_equal(a, b)
            assert a.dtype == b.dtype


@pytest.mark.parametrize("make", PIPELINES)
@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_has_its_rows_and_python_reads_whole_batches(make, size):
    dataset = make()
    alone = flat(batch for _ in range(2) for batch in dataset)
    for rank in (0, size - 1):
        with as_rank(rank, size) as engine:
            dataset, found = make(), []
            for _ in range(2):
                for batch in dataset:
                    found.append(batch)
            for batch, whole in zip(found, alone, strict=True):
                for leaf, other in zip(tf.nest.flatten(batch), tf.nest.flatten(whole), strict=True):
                    low, high = Shard(0, divided(len(other), size)).bounds(rank)
                    assert leaf._placement == Shard(0, divided(len(other), size))
                    assert leaf.shape == other.shape
                    npt.assert_array_equal(np.array(local_array(leaf)), other[low:high])
            assert_same(flat(found), alone)
            (line,) = engine.report.lines()
            assert line.startswith("input: each rank maps only its rows (test_replica_input.py:")


def test_a_rank_maps_only_its_rows():
    """test_data_division.py counts the maps of such a pipeline; this is the pipeline that the loop reads."""
    with as_rank(1, 2):
        dataset = rows().map(double).batch(8)
        first = list(dataset)[0]
    ((mine, _), share, _), *_ = dataset._local_input.pipeline
    npt.assert_array_equal(mine, local_array(first[0]))
    assert share.numpy().tolist() == [4, 8]


def test_a_thread_reads_the_whole_batch_of_the_main_thread():
    read = []
    with as_rank(1, 2):
        for x, _ in rows().map(double).batch(8):
            thread = threading.Thread(target=lambda x=x: read.append(x.numpy()))
            thread.start()
            thread.join()
    npt.assert_array_equal(np.concatenate(read), X * 2)


def test_a_thread_and_a_generator_draw_whole_batches():
    def batches():
        yield from (y for _, y in dataset)

    with as_rank(1, 2):
        dataset = rows().map(double).batch(8)
        generated = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([None], tf.int64))
        found = [np.array(y) for y in generated]
        shared = iter(())
        for shared in [iter(x for x, _ in dataset)]:  # made here, drawn from there
            thread = threading.Thread(target=lambda it=shared: found.extend(x.numpy() for x in it))
            thread.start()
            thread.join()
    npt.assert_array_equal(np.concatenate(found[:5]), Y + 1)
    npt.assert_array_equal(np.concatenate(found[5:]), X * 2)


def test_later_epochs_are_undivided_where_the_script_reads_whole_batches():
    with as_rank(0, 2) as engine:
        dataset = rows().map(double).batch(8)
        for _ in range(2):
            assert_same(flat(dataset), flat(rows().map(double).batch(8)))
        _, line = engine.report.lines()
    assert line == "input: every rank maps all rows, because the script reads whole batches"


def refused():
    here = r"at test_replica_input\.py:\d+"
    yield f"RandomUniform {here} is random", lambda: rows().map(noisy).batch(8)
    yield "`shuffle` follows the map", lambda: rows().map(double).shuffle(9).batch(8)
    yield "`cache` follows the map", lambda: rows().map(double).batch(8).cache()
    yield "tensors without numbers", lambda: rows().map(as_text).batch(8)
    yield "takes whole batches", lambda: rows().batch(8).map(double)


@pytest.mark.parametrize("why,make", [pytest.param(*case, id=case[0]) for case in refused()])
def test_what_is_not_proven_is_not_divided(why, make):
    tf.random.set_seed(5)
    alone = flat(make())
    with as_rank(1, 2) as engine:
        tf.random.set_seed(5)
        dataset = make()
        found = list(dataset)
        assert_same(flat(found), alone)
        (line,) = engine.report.lines()
        assert re.search(f"^input: every rank maps all rows, because .*{why}", line)


def test_an_iterator_of_a_function_is_not_divided():
    @tf.function
    def step(iterator):
        return next(iterator)

    with as_rank(0, 2) as engine:
        dataset = rows().map(double).batch(8)
        iterator = iter(dataset)
        x, _ = step(iterator)
        assert "only read by `next`" in engine.report.lines()[0]
        npt.assert_array_equal(np.array(local_array(x)), X[:4] * 2)


def test_shuffles_before_the_map_go_on_in_whole_iterators():
    """Alone, each iterator of a dataset draws the next order, whichever code makes the iterator."""

    def orders(dataset):
        found = [np.concatenate([y for _, y in dataset])]
        found.append(np.concatenate([y for _, y in dataset.take(9)]))
        for epoch in (0, 1):
            found += [np.concatenate([y.numpy() for _, y in dataset]) + epoch]
        return found

    make = lambda: rows().shuffle(20, seed=4).map(double).batch(8)  # noqa: E731
    alone = orders(make())
    with as_rank(1, 2):
        assert_same(orders(make()), alone)


def test_a_failed_row_ends_a_rank_that_goes_on():
    """The `try` is hidden from the script's source: in the script it would prevent the division."""

    def goes_on(read):
        with contextlib.ExitStack() as stack:
            stack.push(lambda *_: True)
            read()

    def read():
        for _ in dataset:
            drawn.append(1)

    drawn = []
    with as_rank(1, 2) as engine:
        dataset = rows().map(checked).batch(8)
        goes_on(read)
        assert len(drawn) == 2  # row 20 is in the second half of the third batch
        with pytest.raises(WorkerError, match="failed in its map on rank 1, and the script went on"):
            engine.converter.exchange.replicated("sum", [np.ones(3)], [Shard(0, (0, 3))])
    with as_rank(0, 2) as engine:
        drawn.clear()
        dataset = rows().map(checked).batch(8)
        goes_on(read)
        assert len(drawn) == 5


@pytest.mark.parametrize("traced", [False, True])
def test_other_ranks_hear_of_an_error_in_this_ranks_rows_that_the_script_catches(traced):
    def looked_up(x, y):
        return tf.reduce_mean(tf.gather(X, y) + x)

    look_up = tf.function(looked_up) if traced else looked_up
    with as_rank(0, 2):
        for x, y in rows().map(lambda x, y: (x, tf.where(y == 1, tf.constant(N, y.dtype), y))).batch(8).take(1):
            with pytest.raises(tf.errors.InvalidArgumentError):
                look_up(x, y)
            failed = r", after failed operations: 1 \(.* at .*test_replica_input.py:\d+: check its rows before it\)$"
            with pytest.raises(AssertionError, match=failed):
                float(tf.reduce_mean(x))


def test_the_samples_of_a_batch_are_its_most_rows_and_not_those_of_other_products():
    many, few = (tf.data.Dataset.from_tensors(tf.ones((rows, 3))) for rows in (8, 4))
    with as_rank(0, 2) as engine:
        for _ in tf.data.Dataset.zip(many, few):
            tf.matmul(tf.ones((6, 6)), tf.ones((6, 2)))
        assert engine.entry.rows == (4, 8)


def test_a_batch_of_vectors_of_one_length_is_counted_also_behind_a_product():
    """Indices and labels, which a model looks up in a graph that it holds whole."""
    vectors = (tf.range(8), tf.ones(8))
    with as_rank(0, 2) as engine:
        engine.entry.note_product(12)
        for element in (vectors, vectors[0]):  # a single vector may be one sample
            for _ in tf.data.Dataset.from_tensors(element).repeat(2):
                engine.samples.gradient()
        assert engine.samples.samples == 8


def test_a_dataset_that_a_library_reads_has_no_line():
    dataset = tf.data.Dataset.from_tensors(tf.ones((8, 3))).map(lambda x: 2 * x)
    reading = "for _ in dataset: pass"
    with as_rank(0, 2) as engine:
        exec(compile(reading, "<library>", "exec"), {"dataset": dataset})
        assert engine.report.lines() == []
        exec(compile(reading, "script.py", "exec"), {"dataset": dataset})
        assert "takes whole batches" in engine.report.lines()[0]


def test_the_samples_of_ragged_batches_are_those_of_their_values():
    values = tf.ones((8, 4))
    ragged = tf.RaggedTensor.from_row_splits(values, [0, 3, 8])
    with as_rank(0, 2) as engine:
        for _ in tf.data.Dataset.from_tensors((ragged, ragged)):
            assert engine.entry.rows == (4, 8)


def test_products_are_samples_where_no_batch_enters_any_more():
    with as_rank(0, 2) as engine:
        for _ in tf.data.Dataset.from_tensors(tf.ones((8, 3))):
            pass
        for _ in range(10):
            engine.samples.gradient()
        assert engine.samples.samples == 4
        engine.entry.note_product(6)
        engine.samples.gradient()
        engine.entry.note_product(6)
        assert engine.samples.samples == 7 and engine.entry.rows == (3, 6)
