"""Divided pipelines: a rank maps only its rows, and its slices are those of the undivided pipeline, to the bit."""

import functools
import re

import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf

from client_shim.capture.data import FitValidation, capture_data
from fdt.blobs import LocalBlobs
from fdt.data import division, open_source, source
from fdt.errors import OTHER_ROWS
from fdt.job import FitArguments, GraphData
from fdt.service.blame import failure

N = 37
X = np.random.default_rng(0).random((N, 3)).astype("float32")
Y = np.arange(N)
AUTO = tf.data.AUTOTUNE


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def double(x, y):
    return x * 2, y + 1


def named(x, y):
    return {"b": x, "a": tf.strings.as_string(y)}, tf.cast(y % 3, tf.int32)


def keyed(x, y):
    return x + tf.random.stateless_uniform([3], tf.stack([y, 7])), y


def as_many(i):
    return tf.range(i)


def total(v):
    return tf.reduce_sum(v)


def part_set(x, y):
    x.set_shape([3])
    return tf.strings.length(tf.strings.as_string(x)), y


@tf.function
def branching(x, y):
    if y % 2 == 0:
        x = -x
    for _ in tf.range(y):
        x = x + 1.0
    return tf.ensure_shape(x, [3]), y


def looked_up():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [5, 6]), -1)
    return lambda x, y: (x, table.lookup(tf.cast(y, tf.int32)))


def provable():
    unordered = tf.data.Options()
    unordered.deterministic = False
    yield "plain", rows().map(double).batch(8)
    yield "shuffled", rows().shuffle(20).map(double, AUTO).batch(8).prefetch(2)
    yield "seeded", rows().shuffle(20, seed=3, reshuffle_each_iteration=False).map(double, 2).batch(8)
    yield "full batches", rows().map(double).batch(8, drop_remainder=True)
    yield "few rows", rows().take(3).map(double).batch(2)
    yield "one short batch", rows().map(double).batch(50)
    yield "structures and strings", rows().map(named).batch(8)
    yield "two maps", rows().map(double).prefetch(3).map(named).batch(8)
    yield "a shape in between", tf.data.Dataset.range(9).map(as_many).map(total).batch(4)
    yield "a shape that Python sets", rows().map(lambda x, y: (tf.boolean_mask(x, x >= 0), y)).map(part_set).batch(8)
    yield "keyed by the row", rows().map(keyed).batch(8)
    yield "branches and loops", rows().map(branching).batch(8)
    yield "a table", rows().map(looked_up()).batch(8)
    yield "cache and repeat before", rows().cache().repeat(2).shuffle(9).map(double).batch(8)
    yield "filter before", rows().filter(lambda x, y: y % 3 > 0).map(double).batch(8)
    yield "interleave before", tf.data.Dataset.range(5).interleave(tf.data.Dataset.range).map(lambda i: i * 3).batch(4)
    yield "a map whose rows are shuffled", rows().map(double).shuffle(9).map(double).batch(8)
    yield "take, skip and repeat after", rows().map(double).batch(4).skip(1).take(5).repeat(2)
    yield "shuffled after the map", rows().map(double).shuffle(20).batch(8)
    yield "shuffled around the map", rows().shuffle(9).map(double, 2).shuffle(20, seed=3).map(double).batch(8)
    yield "shuffled once", rows().map(double).shuffle(20, seed=2, reshuffle_each_iteration=False).repeat(2).batch(8)
    yield "take and skip after the map", rows().map(double).skip(3).prefetch(1).take(20).batch(8)
    yield "batches cached and shuffled", rows().shuffle(20).map(double).batch(8).cache().shuffle(3)
    yield "no order", rows().map(double, 4, deterministic=False).batch(8, num_parallel_calls=2).with_options(unordered)


CASES = [pytest.param(dataset, id=name) for name, dataset in provable()]


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    return LocalBlobs(tmp_path_factory.mktemp("blobs"))


@pytest.fixture(scope="module")
def both(blobs):
    """`both(dataset)`: the divided source and the whole one, which the tests of a case share."""
    return functools.cache(lambda dataset: tuple(opened(blobs, dataset, divide=divide) for divide in (True, False)))


def opened(blobs, dataset, *, divide, steps=0, **keywords):
    captured = capture_data("keras", blobs, dataset, divide=divide, **keywords)
    assert isinstance(captured.train, GraphData) and bool(captured.train.divided_rows) == divide
    assert captured.facts.mapped.startswith("each rank maps only its rows (test_data_division.py:") == divide
    return open_source(captured.train, FitArguments(steps_per_epoch=steps), blobs, 7, training=True)


def assert_same(ours, theirs):
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    for left, right in zip(ours, theirs, strict=True):
        tf.nest.assert_same_structure(left, right)
        for a, b in zip(tf.nest.flatten(left), tf.nest.flatten(right), strict=True):
            assert a.dtype == b.dtype
            npt.assert_array_equal(a, b)


@pytest.mark.parametrize("dataset", CASES)
@pytest.mark.parametrize("size", [2, 3])
def test_slices_are_those_of_the_whole_pipeline(both, dataset, size):
    ours, theirs = both(dataset)
    assert (ours.steps, ours.samples, ours.batch_size) == (theirs.steps, theirs.samples, theirs.batch_size)
    assert ours.element_spec == theirs.element_spec
    for rank, epoch in ((0, 0), (size - 1, 0), (size - 1, 1)):
        mine, other = ours.slices(epoch, rank, size), theirs.slices(epoch, rank, size)
        assert mine.element_spec == other.element_spec
        assert int(mine.cardinality()) == int(other.cardinality())
        assert_same(mine, other)


@pytest.mark.parametrize("n", [1, 4, 7, 36])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_every_rank_has_its_rows_of_every_batch(n, drop_remainder):
    dataset = rows().map(double).batch(n, drop_remainder)
    found = division.find(dataset)
    for size in (1, 5):
        for rank in range(size):
            slices = division.local(found, rank, size, division.width(n, size))
            assert_same(slices, source.part(dataset, rank, size))


@pytest.mark.parametrize("dataset", CASES)
def test_whole_batches_are_those_of_the_whole_pipeline(both, dataset):
    ours, theirs = both(dataset)
    assert_same([ours.first_batch()], [theirs.first_batch()])
    readers = ours.reader(1), theirs.reader(1)
    assert_same(*([reader(0)] for reader in readers))


@pytest.mark.parametrize("steps", [3, 7])
def test_epochs_of_some_steps_continue_a_pass(blobs, steps):
    dataset = rows().shuffle(20).map(double).batch(8)
    ours, theirs = (
        opened(blobs, dataset, divide=divide, steps=steps, steps_per_epoch=steps) for divide in (True, False)
    )
    for epoch in range(4):
        assert_same(ours.slices(epoch, 1, 2), theirs.slices(epoch, 1, 2))


def test_class_weights_follow_the_division(blobs):
    dataset = rows().map(lambda x, y: (x, y % 2)).batch(8)
    ours, theirs = (opened(blobs, dataset, divide=divide, class_weight={0: 1.0, 1: 3.0}) for divide in (True, False))
    assert_same(ours.slices(0, 1, 2), theirs.slices(0, 1, 2))
    ((_, _, weight), _), *_ = ours.slices(0, 1, 2)
    assert weight.numpy().tolist() == [1, 3, 1, 3]


def test_validation_data_are_divided(blobs):
    captured = capture_data("keras", blobs, X, validation=FitValidation(rows().map(double).batch(8)), divide=True)
    assert captured.validation.divided_rows == 8


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_maps_only_its_rows(size):
    """The map counts its rows in Python here, for which `find` would not divide it."""
    mapped = []
    found = division.find(tf.data.Dataset.range(20).map(lambda i: i * 2).batch(8))

    def count(row):
        mapped.append(int(row))
        return row

    def counted(row, share):
        return tf.ensure_shape(tf.py_function(count, [row], tf.int64), []), share

    found = found._replace(maps=[lambda stream: stream.map(counted)])
    list(division.local(found, size - 1, size, division.width(8, size)))
    assert len(mapped) == 3 * -(-8 // size)  # three batches
    assert set(mapped) == {i for i in range(16) if i % 8 >= 8 * (size - 1) // size} | {18, 19}


def written(x, y):
    tf.print(y)
    return x, y


def checked(x, y):
    tf.debugging.assert_less(y, tf.constant(N, tf.int64))
    return x, y


HERE = r"at test_data_division\.py:\d+"


def impure():
    """Maps whose results depend on more than their rows."""
    counter = tf.Variable(0, dtype=tf.int64)
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    generator = tf.random.Generator.from_seed(1)
    yield f"RandomUniform {HERE} is random", rows().map(lambda x, y: (x + tf.random.uniform([3]), y)).batch(8)
    yield f"RngReadAndSkip {HERE} is random", rows().map(lambda x, y: (x + generator.uniform([3]), y)).batch(8)
    yield f"RandomShuffle {HERE} is random", rows().map(lambda x, y: (tf.random.shuffle(x), y)).batch(8)
    yield (
        "EagerPyFunc .* runs Python",
        rows().map(lambda x, y: tf.ensure_shape(tf.py_function(lambda v: v, [x], tf.float32), [3])).batch(8),
    )
    yield (
        "PyFuncStateless .* runs Python",
        rows()
        .map(lambda x, y: tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32, stateful=False), [3]))
        .batch(8),
    )
    yield f"AssignAddVariableOp {HERE} has a state", rows().map(lambda x, y: counter.assign_add(y)).batch(8)
    yield f"ReadVariableOp {HERE} has a state", rows().map(lambda x, y: counter + y).batch(8)
    yield "LookupTableInsertV2 .* has a state", rows().map(lambda x, y: (table.insert(y, y), y)[1]).batch(8)
    yield f"PrintV2 {HERE} has a state or an effect", rows().map(written).batch(8)
    yield f"Assert {HERE} has a state or an effect", rows().map(checked).batch(8)


def of_other_rows():
    """Pipelines whose batches are not made of the rows of the maps, one by one."""
    yield (
        f"the rows that the map {HERE} returns have no static shape",
        tf.data.Dataset.range(9).map(as_many).prefetch(1).batch(1),
    )
    yield (
        f"the rows that the map {HERE} takes have no static shape",
        tf.data.Dataset.range(9).map(as_many).filter(lambda v: True).map(total).shuffle(3).batch(2),
    )
    yield f"the map {HERE} takes whole batches", rows().map(double).batch(8).map(double)
    yield f"`cache` follows the map {HERE}", rows().map(double).cache().shuffle(9).batch(8)
    yield "`cache` makes the batches", rows().map(double).batch(8).cache("/tmp/never-written")
    yield f"`filter` follows the map {HERE}", rows().map(double).filter(lambda x, y: y > 3).batch(8)
    yield f"`padded_batch` makes the batches of the map {HERE}", rows().map(double).padded_batch(8)
    yield "`unbatch` follows the map", rows().batch(4).map(double).unbatch().batch(8)
    yield (
        f"`zip` makes the batches of the map {HERE}",
        tf.data.Dataset.zip((rows().map(double).batch(8), rows().batch(8))),
    )
    yield "`concatenate` makes", rows().map(double).batch(8).concatenate(rows().map(double).batch(8))
    yield "`group_by_window` makes", rows().map(double).group_by_window(lambda x, y: y % 2, lambda _, d: d.batch(4), 4)
    yield "`ignore_errors` makes", rows().map(double).batch(8).ignore_errors()
    yield "^$", rows().shuffle(9).batch(8)


@pytest.mark.parametrize("why,dataset", [pytest.param(*case, id=case[0]) for case in (*impure(), *of_other_rows())])
def test_what_is_not_proven_is_not_divided(why, dataset):
    found = division.find(dataset)
    assert isinstance(found, str)
    assert re.search(why, found)


@pytest.mark.parametrize("eagerly", [True, False])
def test_zipped_batches_with_other_numbers_of_rows_are_not_cut(eagerly):
    pairs = tf.data.Dataset.zip(*(tf.data.Dataset.range(rows).batch(8) for rows in (16, 11)))
    slices = (source.cut_batch(pair, 0, 2) for pair in pairs) if eagerly else source.part(pairs, 0, 2)
    found = iter(slices)
    assert [part.shape[0] for part in next(found)[0]] == [4, 4]
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        next(found)
    told = failure(raised.value)
    assert told.replica == OTHER_ROWS and "`--capture replica` runs the script on every rank" in told.message
