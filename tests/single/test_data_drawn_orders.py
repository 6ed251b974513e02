"""Orders that the script draws of a seeded shuffle before `fit`: workers begin with the next one."""

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf
import tf_keras

from client_shim.capture import kept_orders, orders
from client_shim.capture.data import FitValidation, capture_data
from client_shim.capture.datasets import capture
from client_shim.row_orders import RowOrders
from fdt.blobs import LocalBlobs
from fdt.data import iterators_of_fit, open_source
from fdt.data.pipeline import Refused
from fdt.errors import UserError
from fdt.job import FeedData, FitArguments, GraphData
from fdt.report import Reporters
from tests.single.data_orders import order_of_fit

ROWS = 48
LIBRARIES = pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")


@pytest.fixture(autouse=True)
def _counted():
    with orders.counted(), kept_orders.seeded(None):
        yield


@pytest.fixture
def blobs(tmp_path):
    return LocalBlobs(tmp_path)


def shuffled():
    rows = tf.data.Dataset.range(ROWS).map(lambda n: (tf.cast([n], tf.float32), n))
    return rows.shuffle(ROWS, seed=5).batch(16)


def labels(data, blobs, library, epoch, steps=0):
    fit = FitArguments(steps_per_epoch=steps, epochs=3)
    source = open_source(data, fit, blobs, 7, training=True, flavor=library.__name__)
    return [element[1].numpy().tolist() for element, _ in source.slices(epoch, 0, 1)]


def first_labels(data):
    return next(iter(data))[1].numpy().tolist()


def is_looked_at(data):
    first_labels(data.take(1))


def is_adapted_to(data):
    layer = keras.layers.Normalization()
    layer.adapt(data.map(lambda x, y: x))


def is_reduced_by_a_function_with_a_branch(data):
    def count(rows, row):
        if tf.reduce_sum(row[1]) > 0:
            rows += 1
        return rows

    assert int(data.reduce(0, lambda rows, row: count(rows, row))) == ROWS // 16


def is_zipped_with_itself(data):
    next(iter(tf.data.Dataset.zip((data, data))))


BEFORE = [is_looked_at, is_adapted_to, is_reduced_by_a_function_with_a_branch, is_zipped_with_itself]


@LIBRARIES
@pytest.mark.parametrize("before", BEFORE)
def test_workers_begin_with_the_order_after_those_that_the_script_has_drawn(blobs, library, before):
    alone, ours = shuffled(), shuffled()
    before(alone)
    before(ours)
    data = capture(ours, blobs)
    assert data.iterators > 0
    for epoch, order in enumerate(order_of_fit(library, alone, None)):
        assert labels(data, blobs, library, epoch) == order


@LIBRARIES
@pytest.mark.parametrize("steps", [None, 2, 3])
def test_an_earlier_fit_has_drawn_orders_that_the_script_gets_too(blobs, library, steps):
    alone, ours = shuffled(), shuffled()
    is_looked_at(alone)
    is_looked_at(ours)
    order_of_fit(library, alone, steps)
    orders.owe(ours, iterators_of_fit(capture(ours, blobs), steps or 0, 3, library.__name__))
    first, *_ = order_of_fit(library, alone, steps)[0]
    assert labels(capture(ours, blobs), blobs, library, 0, steps or 0)[0] == first
    orders.owe(ours, iterators_of_fit(capture(ours, blobs), steps or 0, 3, library.__name__))
    assert first_labels(ours) == first_labels(alone)
    assert first_labels(ours) == first_labels(alone)


@LIBRARIES
def test_a_cache_that_is_made_after_a_look_keeps_the_next_order_in_each_fit(blobs, library):
    looked_at, theirs = shuffled(), shuffled()
    is_looked_at(looked_at)
    is_looked_at(theirs)
    ours, alone = looked_at.cache(), theirs.cache()
    for _ in range(2):
        data = capture(ours, blobs)
        for epoch, order in enumerate(order_of_fit(library, alone, None)):
            assert labels(data, blobs, library, epoch) == order
        orders.owe(ours, iterators_of_fit(data, 0, 3, library.__name__))


def test_a_pipeline_whose_orders_are_not_counted_begins_anew_after_a_fit(blobs):
    ours = shuffled().shuffle(3, seed=2)
    orders.owe(ours, 4)
    assert capture(ours, blobs).iterators == 0


def test_an_unseeded_shuffle_and_one_that_keeps_its_order_count_nothing(blobs):
    for data in (
        tf.data.Dataset.range(9).shuffle(9).batch(3),
        tf.data.Dataset.range(9).shuffle(9, seed=1).shuffle(9).batch(3),
        tf.data.Dataset.range(9).shuffle(9, seed=1, reshuffle_each_iteration=False).batch(3),
    ):
        next(iter(data))
        assert capture(data, blobs).iterators == 0


def read_in_a_function():
    data = shuffled()

    @tf.function
    def total():
        rows = tf.constant(0, tf.int64)
        for _, y in data:
            rows += tf.reduce_sum(y)
        return rows

    total()
    return data


def read(data):
    first_labels(data)
    return data


def read_in_part():
    return read(shuffled()).shuffle(3, seed=1)


def read_in_two_shuffles():
    return read(shuffled().shuffle(3, seed=1))


def read_before_it_repeats():
    return read(shuffled()).repeat(2)


def read_in_two_parts():
    data = shuffled()
    return read(data.concatenate(data.map(lambda x, y: (-x, y))))


def read_often():
    data = shuffled()
    orders.owe(data, orders.MOST + 1)
    return data


def read_into_a_cache():
    data = shuffled().cache()
    list(data)
    return data


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (read_in_a_function, "an unknown number of times"),
        (read_in_part, "several shuffles, or"),
        (read_in_two_shuffles, "several shuffles, or"),
        (read_before_it_repeats, "several shuffles, or"),
        (read_in_two_parts, "several shuffles, or"),
        (read_often, "201 orders"),
        (read_into_a_cache, "read its cache"),
    ],
)
def test_the_client_draws_where_the_number_is_not_known(blobs, made, reason):
    with pytest.raises(Refused, match=reason):
        capture(made(), blobs)
    assert not list(blobs.directory.iterdir()), "nothing is left in the store"
    assert capture(made(), blobs, in_order=False).iterators == 0, "the order of validation data does not matter"


def test_an_iterator_is_counted_once_within_two_contexts(blobs):
    data = shuffled()
    with orders.counted():
        is_looked_at(data)
    is_looked_at(data)
    assert capture(data, blobs).iterators == 2


def test_a_pipeline_of_many_parts_is_read():
    data = tf.data.Dataset.range(1)
    for _ in range(1100):
        data = data.concatenate(tf.data.Dataset.range(1))
    assert sum(1 for _ in data) == 1101


def of_fit(blobs, data, validation, **more):
    return capture_data("keras", blobs, data, validation=FitValidation(validation, **more))


@pytest.mark.parametrize("derived", [lambda data: data, lambda data: data.take(1), lambda data: data.skip(1).cache()])
def test_the_client_draws_training_and_validation_that_share_a_shuffle(blobs, derived):
    data = shuffled()
    captured = of_fit(blobs, data, derived(data))
    assert isinstance(captured.train, FeedData) and captured.in_turn
    assert captured.validation is None
    assert "the same shuffle" in captured.facts.note


def test_workers_read_a_shared_shuffle_where_numbers_are_not_those_of_one_machine(blobs):
    data = shuffled()
    captured = of_fit(blobs, data, data.take(1), in_turn=False)
    assert isinstance(captured.train, GraphData) and captured.validation is None and not captured.in_turn


def test_the_client_draws_validation_data_that_are_shuffled(blobs):
    captured = of_fit(blobs, shuffled(), shuffled())
    assert isinstance(captured.train, GraphData) and not captured.in_turn
    assert captured.validation is None


def test_workers_read_validation_data_whose_order_stays_or_is_another_in_each_run(blobs):
    whole = tf.data.Dataset.range(ROWS).map(lambda n: (tf.cast([n], tf.float32), n))
    for data in (
        whole.batch(16),
        whole.shuffle(ROWS, seed=1, reshuffle_each_iteration=False).batch(16),
        whole.shuffle(ROWS).batch(16),
    ):
        captured = of_fit(blobs, data.map(lambda *row: row), data)
        assert isinstance(captured.train, GraphData) and isinstance(captured.validation, GraphData)


class Training:
    """What `fit` does to the orders of its data, without workers."""

    def __init__(self, blobs, data, validation=None, first=0):
        captured = of_fit(blobs, data, validation)
        arguments = {"x": data, "initial_epoch": 0}
        call = SimpleNamespace(arguments=arguments, steps_per_epoch=0, flavor=SimpleNamespace(name="keras"))
        client = SimpleNamespace(hello=SimpleNamespace(workers=2))
        run = SimpleNamespace(
            engine="hfdt", client=client, settings=SimpleNamespace(options={}), reporters=Reporters([])
        )
        self.orders = RowOrders(run, call, captured)
        self.orders.begin_at(first)


def test_a_callback_that_reads_what_workers_shuffle_is_refused_within_an_epoch(blobs):
    data = shuffled()
    training = Training(blobs, data).orders
    with training.watched():
        first_labels(shuffled())
        training.epoch_begins()
        with pytest.raises(UserError, match="within an epoch .* Received: an iterator at .*; read them in on_train"):
            first_labels(data.take(1))


def test_a_callback_reads_behind_the_last_epoch_as_on_one_machine(blobs):
    data, alone = shuffled(), shuffled()
    order_of_fit(keras, alone, None)
    training = Training(blobs, data).orders
    with training.watched():
        for _ in range(3):
            training.epoch_begins()
            training.epoch_ended()
        assert first_labels(data) == first_labels(alone)
        with pytest.raises(UserError, match="before the last epoch has ended.* Received: an iterator at "):
            training.epoch_begins()
    assert first_labels(data) == first_labels(alone)


def test_a_callback_reads_in_turn_with_the_client_but_before_the_first_epoch(blobs):
    data = shuffled()
    training = Training(blobs, data, data.take(1)).orders
    with training.watched():
        training.epoch_begins()
        first_labels(data)
        training.epoch_ended()
        training.epoch_begins()
    training = Training(blobs, data, data.take(1)).orders
    with training.watched():
        first_labels(data)
        with pytest.raises(UserError, match="Received: an iterator at "):
            training.epoch_begins()


def test_a_resumed_fit_owes_the_epochs_before_it(blobs):
    data, alone = shuffled(), shuffled()
    order_of_fit(keras, alone, None)
    Training(blobs, data, first=3)
    assert first_labels(data) == first_labels(alone)


def test_a_fit_with_caches_behind_one_shuffle_is_not_resumed(blobs):
    data = shuffled()
    Training(blobs, data, data.cache())
    with pytest.raises(UserError, match="cannot be resumed if its training and validation data share a shuffle"):
        Training(blobs, data, data.cache(), first=1)
    Training(blobs, data, data.take(1), first=1)


def test_a_pipeline_that_repeats_behind_its_shuffle_starts_anew_behind_a_fit():
    def repeated(seed):
        return tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=seed).batch(16).repeat()

    ours = repeated(5)
    assert not orders.starts_anew(ours)
    orders.owe(ours, 1)
    assert orders.starts_anew(ours.map(lambda n: n))
    unseeded, read_once = repeated(None), shuffled()
    for data in (unseeded, read_once):
        orders.owe(data, 1)
        assert not orders.starts_anew(data)


def test_rows_that_an_unseeded_shuffle_divides_are_the_same_ones_on_workers(blobs):
    """It keeps one order, so that `take` and `skip` of it make training and test data."""
    order = tf.data.Dataset.range(ROWS).shuffle(ROWS, reshuffle_each_iteration=False)
    rows = order.map(lambda n: (tf.cast([n], tf.float32), n))
    own = {int(y) for _, y in rows.take(16)}
    data = capture_data("keras", blobs, rows.take(16).batch(16)).train
    assert isinstance(data, GraphData)
    for epoch in (0, 1):
        (batch,) = labels(data, blobs, keras, epoch)
        assert set(batch) == own
    assert {int(y) for _, y in rows.skip(16)} == set(range(ROWS)) - own


MADE_BEFORE = tf.data.Dataset.range(ROWS).shuffle(ROWS, reshuffle_each_iteration=False)


def test_the_client_draws_rows_that_an_unseeded_shuffle_has_divided_before(blobs):
    rows = MADE_BEFORE.map(lambda n: (tf.cast([n], tf.float32), n)).take(16).batch(16)
    assert isinstance(capture_data("keras", blobs, rows).train, FeedData)


def test_the_seed_of_a_run_determines_the_order_of_an_unseeded_shuffle():
    def order(seed):
        with kept_orders.seeded(seed):
            return [int(n) for n in tf.data.Dataset.range(ROWS).shuffle(ROWS, reshuffle_each_iteration=False)]

    assert order(3) == order(3) != order(None)


def test_an_unseeded_shuffle_takes_its_seed_from_the_scripts_generator_where_it_has_one():
    def draws():
        tf.random.set_seed(4)
        order = [int(n) for n in tf.data.Dataset.range(9).shuffle(9, reshuffle_each_iteration=False)]
        return order, tf.random.normal(()).numpy()

    assert draws() == draws()
