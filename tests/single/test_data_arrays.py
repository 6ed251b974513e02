"""Captured arrays: a worker reads the batches of Keras's own adapters, divided into parts."""

import keras
import numpy as np
import numpy.testing as npt
import pandas
import pytest
import scipy.sparse
import tensorflow as tf
import tf_keras
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from tf_keras.src.engine.data_adapter import DataHandler

from client_shim.capture.arrays import is_shuffled
from client_shim.capture.data import FitValidation, capture_data
from fdt.blobs import LocalBlobs
from fdt.data import open_source
from fdt.job import FitArguments

RANDOM = np.random.default_rng(0)
N, B = 1003, 64
SAMPLING = {"partition": "random-sampling"}
X = RANDOM.random((N, 3)).astype("float32")
Y = RANDOM.integers(0, 4, N)


@pytest.fixture
def blobs(tmp_path):
    return LocalBlobs(tmp_path)


def opened(blobs, *arguments, flavor="keras", batch_size=B, shuffle=False, seed=5, options=None, epochs=1, **keywords):
    steps = keywords.get("steps_per_epoch") or 0
    data = capture_data(flavor, blobs, *arguments, batch_size=batch_size, shuffle=shuffle, **keywords)
    fit = FitArguments(
        batch_size=batch_size or 0, shuffle=is_shuffled(flavor, shuffle), steps_per_epoch=steps, epochs=epochs
    )
    return open_source(data.train, fit, blobs, seed, training=True, options=options, flavor=flavor)


def batches(source, epoch=0, rank=0, size=1):
    return [element for element, _ in source.slices(epoch, rank, size)]


def assert_same(ours, theirs):
    tf.nest.assert_same_structure(ours, theirs)
    for one, other in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
        assert one.dtype == other.dtype
        npt.assert_array_equal(one.numpy(), other.numpy())


CASES = {
    "x alone": (X,),
    "x in a list": ([X],),
    "x and y": (X, Y),
    "weights": (X, Y, np.linspace(0, 1, N)),
    "float64": (X.astype("float64"), Y.astype("float64")),
    "float16": (X.astype("float16"), Y),
    "column y": (X, Y[:, None]),
    "dicts": ({"b": X, "a": Y}, {"out": Y}),
    "several": ([X, X[:, :1]], [Y, X]),
    "small types": (np.arange(N, dtype="uint8"), X > 0.5),
    "tensors": (tf.constant(X), tf.constant(Y.astype("int32"))),
    "double tensors": (tf.constant(X, tf.float64), tf.constant(Y)),
    "strings": (np.array([f"w{i}é" for i in range(N)], object), Y),
    "string tensors": (tf.constant([f"w{i}" for i in range(N)]), Y),
    "bfloat16": (tf.cast(X, tf.bfloat16), Y),
    "frame": (pandas.DataFrame(X), pandas.DataFrame(Y)),
    "series": (X, pandas.Series(Y)),
}


@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_keras(blobs, case):
    theirs = ArrayDataAdapter(*CASES[case], batch_size=B).get_tf_dataset()
    ours = opened(blobs, *CASES[case])
    for one, other in zip(batches(ours), theirs, strict=True):
        assert_same(one, other)
    assert ours.steps == 16
    tf.nest.map_structure(
        lambda spec, t: spec.is_compatible_with(t) or pytest.fail(), ours.element_spec, batches(ours)[0]
    )


@pytest.mark.parametrize("case", [c for c in CASES if c != "frame"])  # which tf_keras takes for a dict of columns
def test_batches_are_those_of_tf_keras(blobs, case):
    x, y, weights = (*CASES[case], None, None)[:3]
    handler = DataHandler(x, y, weights, batch_size=B)
    (_, iterator), *_ = handler.enumerate_epochs()
    ours = batches(opened(blobs, *CASES[case], flavor="tf_keras"))
    assert len(ours) == handler.inferred_steps
    for one in ours:
        assert_same(one, next(iterator))


@pytest.mark.parametrize("flavor", ["keras", "tf_keras"])
def test_class_weight_is_folded_as_the_flavor_does(blobs, flavor):
    weights = {0: 0.5, 1: 2.0, 2: 1.0, 3: 0.25}
    if flavor == "keras":
        theirs = list(ArrayDataAdapter(X, Y, class_weight=weights, batch_size=B).get_tf_dataset())
    else:
        (_, iterator), *_ = DataHandler(X, Y, class_weight=weights, batch_size=B).enumerate_epochs()
        theirs = [next(iterator) for _ in range(16)]
    for one, other in zip(batches(opened(blobs, X, Y, class_weight=weights, flavor=flavor)), theirs, strict=True):
        assert_same(one, other)


def test_tf_keras_multiplies_class_and_sample_weight(blobs):
    (element, *_) = batches(
        opened(blobs, X, Y, np.full(N, 3.0), class_weight=dict.fromkeys(range(4), 0.5), flavor="tf_keras")
    )
    npt.assert_array_equal(element[2], np.full(B, 1.5, "float32"))


def test_lists_of_numbers_go_as_tf_keras_takes_them(blobs):
    x, y = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [1, 0, 1]
    (_, iterator), *_ = DataHandler(x, y, batch_size=2).enumerate_epochs()
    for one in batches(opened(blobs, x, y, flavor="tf_keras", batch_size=2)):
        assert_same(one, next(iterator))


@pytest.mark.parametrize(("shuffle", "options"), [(False, None), (True, None), (True, SAMPLING)])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_ranks_together_have_the_global_batch(blobs, shuffle, options, size):
    source = opened(blobs, X, Y, shuffle=shuffle, options=options)
    whole, reader = batches(source, epoch=2), source.reader(2)
    ranks = [list(source.slices(2, rank, size)) for rank in range(size)]
    for index, parts in enumerate(zip(*ranks, strict=True)):
        assert_same(tuple(tf.concat([part[i][: share[0]] for part, share in parts], 0) for i in (0, 1)), whole[index])
        assert_same(reader(index), whole[index])
        assert {int(share[1]) for _, share in parts} == {len(whole[index][0])}
    assert len(whole) == 16


def test_a_shuffled_epoch_is_the_permutation(blobs):
    rows = np.arange(N)
    for epoch in (0, 1):
        seen = np.concatenate(batches(opened(blobs, rows, shuffle=True, seed=9), epoch))
        npt.assert_array_equal(seen, np.random.Generator(np.random.PCG64([9, epoch])).permutation(N))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_rank_with_nothing_has_a_row_that_does_not_count(blobs, shuffle):
    source = opened(blobs, np.arange(66), batch_size=64, shuffle=shuffle)
    row, share = list(source.slices(0, 0, 4))[-1]
    assert share.numpy().tolist() == [0, 2]
    npt.assert_array_equal(row, batches(source)[-1][:1])


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps", [4, 16, 40])
def test_steps_per_epoch_goes_on_as_keras_does(blobs, steps):
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    rows = np.arange(N)
    keras_epochs = TFEpochIterator(
        x=rows, batch_size=B, steps_per_epoch=steps, distribute_strategy=tf.distribute.get_strategy()
    )
    source = opened(blobs, rows, steps_per_epoch=steps, epochs=6)
    for epoch in range(6):
        theirs = [next(iterator).numpy() for _, _, iterator in keras_epochs]
        npt.assert_array_equal(np.concatenate(batches(source, epoch)), np.concatenate(theirs))
        assert source.count(epoch) == len(theirs)


def test_steps_per_epoch_goes_on_as_tf_keras_does(blobs):
    rows = np.arange(N)
    handler = DataHandler(rows, batch_size=B, steps_per_epoch=6, epochs=4)
    source = opened(blobs, rows, steps_per_epoch=6, epochs=4, flavor="tf_keras")
    for epoch, iterator in handler.enumerate_epochs():
        theirs = [next(iterator).numpy() for _ in handler.steps()]
        npt.assert_array_equal(np.concatenate(batches(source, epoch)), np.concatenate(theirs))


def test_the_batch_follows_from_the_steps_when_none_is_given(blobs):
    assert opened(blobs, X, batch_size=None).batch_size == 32
    assert opened(blobs, X, batch_size=None, steps_per_epoch=10).batch_size == 101


def test_equal_slices_have_a_static_shape(blobs):
    spec, _ = opened(blobs, X[:128]).slices(0, 0, 2).element_spec
    assert spec.shape == (32, 3)


@pytest.mark.parametrize("flavor", ["keras", "tf_keras"])
def test_random_sampling_counts_batches_by_epoch(blobs, flavor):
    source = opened(blobs, np.arange(N), options=SAMPLING, flavor=flavor, steps_per_epoch=10, epochs=3)
    for epoch in range(3):  # tf_keras's second and third epoch are parts of two passes
        reader = source.reader(epoch)
        for index, batch in enumerate(batches(source, epoch)):
            npt.assert_array_equal(batch, reader(index))
            assert len(set(batch.numpy())) == len(batch)


def test_random_sampling_draws_afresh(blobs):
    source = opened(blobs, np.arange(N), options=SAMPLING)
    one, again = (source.reader(0)(3).numpy() for _ in range(2))
    npt.assert_array_equal(one, again)
    assert not np.array_equal(one, source.reader(1)(3).numpy())
    assert len(source.reader(0)(15)) == N % B


class Recorder(keras.Model):
    def call(self, x):
        return x

    def train_step(self, data):
        self.rows += data[0].numpy().ravel().tolist()
        return {"loss": tf.constant(0.0)}


class Recorder2(tf_keras.Model):
    call, train_step = Recorder.call, Recorder.train_step


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("seed", [0, 2**40 + 5])
@pytest.mark.parametrize("words", [{}, {"steps_per_epoch": 2}, {"steps_per_epoch": 4}, {"initial_epoch": 2}])
@pytest.mark.parametrize("flavor,kind", [("keras", Recorder), ("tf_keras", Recorder2)])
def test_workers_read_rows_in_the_order_in_which_keras_shuffles_them(blobs, flavor, kind, words, seed):
    tf.random.set_seed(seed)
    rows, size = np.arange(23.0, dtype="float32")[:, None], 5
    model = kind()
    model.compile("sgd", "mse", run_eagerly=True)
    model.rows = []
    model.fit(rows, rows, batch_size=size, epochs=5, verbose=0, **words)
    data = capture_data(flavor, blobs, rows, rows, batch_size=size, shuffle=True, **words)
    fit = FitArguments(size, 5, order_seed=1 + seed % (2**31 - 1), **words)
    source = open_source(data.train, fit, blobs, 1, training=True, flavor=flavor)
    first = words.get("initial_epoch", 0)
    epochs = [[x.numpy().ravel() for x, _ in batches(source, epoch)] for epoch in range(first, 5)]
    assert np.concatenate(sum(epochs, [])).tolist() == model.rows
    if epochs[-2]:  # an earlier pass again, as after a restart
        npt.assert_array_equal(
            np.concatenate([x.numpy().ravel() for x, _ in batches(source, 3)]), np.concatenate(epochs[-2])
        )
    assert model.rows[:size] != list(range(size))


@pytest.mark.parametrize("flavor,kind", [("keras", keras), ("tf_keras", tf_keras)])
def test_validation_split_takes_the_last_part(blobs, flavor, kind):
    data = capture_data(flavor, blobs, X, Y, validation=FitValidation(split=0.2))
    fit = FitArguments(batch_size=B, validation_batch_size=B)
    train = open_source(data.train, fit, blobs, 0, training=True, flavor=flavor)
    validation = open_source(data.validation, fit, blobs, 0, training=False, flavor=flavor)
    assert (train.samples, validation.samples) == (802, 201)
    npt.assert_array_equal(np.concatenate([x for x, _ in batches(validation)]), X[802:])
    npt.assert_array_equal(data.validation_data[0], X[802:])


def test_validation_is_never_shuffled_and_takes_its_own_batch_and_steps(blobs):
    data = capture_data("keras", blobs, X, validation=FitValidation((X, Y)))
    fit = FitArguments(batch_size=B, shuffle=True, validation_batch_size=100, validation_steps=3)
    source = open_source(data.validation, fit, blobs, 0, training=False)
    for epoch in (0, 1):
        npt.assert_array_equal(np.concatenate([x for x, _ in batches(source, epoch)]), X[:300])


def test_sparse_rows_travel_as_a_pipeline(blobs):
    given = scipy.sparse.csr_matrix(np.eye(5)[:, :3])
    data = capture_data("keras", blobs, given, np.arange(5.0), batch_size=3, shuffle=False)
    assert type(data.train).__name__ != "ArrayData"
    (leaf, labels) = data.spec
    assert (leaf.shape.as_list(), leaf.dtype, labels.dtype) == ([None, 3], tf.float32, tf.float32)


def test_what_keras_refuses_it_refuses_itself(blobs):
    with pytest.raises(ValueError, match="cardinality"):
        capture_data("keras", blobs, X, Y[:5])


def test_arrays_are_not_copied(blobs):
    from fdt import ops

    (array,) = blobs.get_arrays(blobs.put_arrays([X]))
    shared = ops.mapped_tensor(array)
    capsule = tf.experimental.dlpack.to_dlpack(shared)
    assert np.from_dlpack(_Capsule(capsule)).ctypes.data == array.ctypes.data
    npt.assert_array_equal(shared.numpy(), X)


class _Capsule:
    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **_):
        return self._capsule

    def __dlpack_device__(self):
        return 1, 0


@pytest.mark.parametrize("flavor", ["keras", "tf_keras"])
def test_steps_without_a_size_of_batches_cover_sparse_rows(blobs, flavor):
    source = opened(blobs, scipy.sparse.csr_matrix(X), Y, flavor=flavor, batch_size=None, steps_per_epoch=10)
    sizes = [[int(y.shape[0]) for _, y in batches(source, epoch)] for epoch in (0, 1)]
    assert sizes == [[101] * 9 + [94]] * 2


@pytest.mark.parametrize("flavor", ["keras", "tf_keras"])
def test_sparse_rows_are_shuffled_without_a_draw_from_the_scripts_generator_where_keras_has_none(blobs, flavor):
    tf.random.set_seed(1)
    plain = tf.random.normal(()).numpy()
    tf.random.set_seed(1)
    source = opened(blobs, scipy.sparse.csr_matrix(X), np.arange(N), flavor=flavor, shuffle=True)
    assert (tf.random.normal(()).numpy() == plain) == (flavor == "keras")
    orders = [np.concatenate([y.numpy() for _, y in batches(source, epoch)]).tolist() for epoch in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(N)) and orders[0] != orders[1]


def test_keras_3_permutes_only_within_batches_where_it_shuffles_by_batch(blobs):
    source = opened(blobs, scipy.sparse.csr_matrix(X), np.arange(N), shuffle="batch")
    assert [set(y.numpy() // B) for _, y in batches(source)] == [{number} for number in range(-(-N // B))]
    assert [is_shuffled(flavor, "batch") for flavor in ("keras", "tf_keras")] == [False, True]
    assert is_shuffled("keras", True) and not is_shuffled("keras", False)
