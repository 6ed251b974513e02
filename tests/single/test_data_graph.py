"""tf.data pipelines: the same batches in the same order in every process that rebuilds them."""

import gc
import json
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import keras
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf
import tf_keras
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from tf_keras.src.engine.data_adapter import DataHandler

from client_shim.capture.data import FitValidation, capture_data
from client_shim.capture.datasets import capture, divided
from fdt.blobs import LocalBlobs
from fdt.data import open_source, pipeline
from fdt.data.pipeline import Refused
from fdt.data.source import SinglePass
from fdt.job import FitArguments

sys.path.insert(0, str(Path(__file__).parent))
from data_orders import order_of_fit, orders  # noqa: E402 - beside this file, for the other process too

N = 1003
X = np.random.default_rng(0).random((N, 20)).astype("float32")
Y = np.arange(N)


@pytest.fixture
def blobs(tmp_path):
    return LocalBlobs(tmp_path)


def arrays():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def opened(blobs, dataset, *, seed=7, flavor="keras", steps=0, epochs=1, **keywords):
    data = capture_data(flavor, blobs, dataset, **keywords).train
    return open_source(
        data, FitArguments(steps_per_epoch=steps, epochs=epochs), blobs, seed, training=True, flavor=flavor
    )


def labels(source, epoch=0, rank=0, size=1):
    return [element[1].numpy().tolist() for element, _ in source.slices(epoch, rank, size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_ranks_together_have_the_global_batch(blobs, size):
    dataset = arrays().shuffle(500).map(lambda x, y: (x * 2, y), num_parallel_calls=2).batch(64)
    data = capture_data("keras", blobs, dataset).train
    fit = FitArguments()
    sources = [open_source(data, fit, blobs, 0, training=True) for _ in range(size)]
    whole = labels(open_source(data, fit, blobs, 0, training=True))
    ranks = [list(source.slices(0, rank, size)) for rank, source in enumerate(sources)]
    for index, parts in enumerate(zip(*ranks, strict=True)):
        npt.assert_array_equal(np.concatenate([y[: share[0]] for (_, y), share in parts]), whole[index])
        assert {int(share[1]) for _, share in parts} == {len(whole[index])}
    assert sorted(sum(whole, [])) == Y.tolist()


def test_a_rank_with_nothing_has_a_row_that_does_not_count(blobs):
    ((one, share), *_) = opened(blobs, tf.data.Dataset.range(2).batch(64)).slices(0, 0, 4)
    assert (one.numpy().tolist(), share.numpy().tolist()) == ([0], [0, 2])


def test_arrays_inside_go_as_arrays(blobs):
    parts = pipeline.take_apart(arrays().batch(64))
    assert [a.shape for a in parts.constants] == [(N, 20)]
    assert len(parts.graph) < 20_000
    npt.assert_array_equal(parts.constants[0], X)


def test_strings_inside_go_as_arrays(blobs):
    words = np.array([f"wörd {i}" * 10 for i in range(N)], object)
    dataset = tf.data.Dataset.from_tensor_slices(words).batch(64)
    (first, *_) = [batch for batch, _ in opened(blobs, dataset).slices(0, 0, 1)]
    assert first.numpy().tolist() == [w.encode() for w in words[:64]]


def pipelines():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)
    eager = tf.data.Options()
    eager.deterministic = False
    yield arrays().shuffle(300).batch(64)
    yield arrays().shuffle(300, seed=3).batch(64)
    yield arrays().cache().shuffle(300).batch(64).prefetch(2)
    yield arrays().shuffle(300).batch(64).repeat().take(20)
    yield arrays().shuffle(300).map(lambda x, y: (x, y), 4, deterministic=False).batch(64).with_options(eager)
    yield tf.data.Dataset.zip((arrays().shuffle(300).map(lambda x, y: y).batch(64), tf.data.Dataset.range(99).batch(9)))
    yield tf.data.Dataset.range(9).map(lambda i: (i, table.lookup(tf.cast(i, tf.int32)))).batch(4)


def test_another_process_sees_the_same_order(blobs, tmp_path):
    (tmp_path / "jobs").mkdir()
    datas = [capture(dataset, blobs, seed=11) for dataset in pipelines()]
    script = (
        "import sys, json, pathlib\n"
        "from fdt.blobs import LocalBlobs\n"
        "from fdt.job import GraphData\n"
        "from fdt.rpc.tensor_pb2 import BlobRef\n"
        "from data_orders import orders\n"
        "ref = lambda item: BlobRef(id=item[0], nbytes=item[1])\n"
        "jobs = [GraphData(*map(ref, refs), *rest) for refs, *rest in json.loads(sys.argv[2])]\n"
        "print(json.dumps([orders(job, LocalBlobs(pathlib.Path(sys.argv[1]))) for job in jobs]))\n"
    )
    jobs = [([(r.id, r.nbytes) for r in (d.graph, d.constants, d.spec)], d.cardinality, d.seed) for d in datas]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.getcwd(), os.path.dirname(__file__)]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-c", script, str(blobs.directory), json.dumps(jobs)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    for ours, other in zip([orders(data, blobs) for data in datas], theirs, strict=True):
        assert ours == other


def test_each_epoch_is_shuffled_anew_and_each_shuffle_on_its_own(blobs):
    source = opened(
        blobs,
        tf.data.Dataset.zip((arrays().map(lambda x, y: y).shuffle(N), arrays().map(lambda x, y: y).shuffle(N))).batch(
            N
        ),
    )
    ((first, second), _), *_ = source.slices(0, 0, 1)
    assert not np.array_equal(first, second)
    assert labels(source, 0) != labels(source, 1)
    assert labels(source, 0) == labels(source, 0)


def test_the_run_seed_decides_an_unseeded_shuffle(blobs):
    orders = [labels(opened(blobs, arrays().shuffle(N).batch(64), seed=seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


SHUFFLED = {
    "known": (lambda: arrays().shuffle(N, seed=5).batch(64), None),
    "unknown": (lambda: arrays().shuffle(N, seed=5).batch(64).filter(lambda *_: True), None),
    "steps": (lambda: arrays().shuffle(N, seed=5).batch(64), -(-N // 64)),
    "cached": (lambda: arrays().shuffle(N, seed=5).batch(64).cache(), None),
    "twice": (lambda: arrays().shuffle(N, seed=5).shuffle(9, seed=6).batch(64), None),
    "repeated": (lambda: arrays().shuffle(N, seed=5).repeat(2).batch(64), None),
}


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("kind", SHUFFLED)
@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_seeded_shuffle_keeps_the_order_of_the_scripts_fit_also_after_a_restart(blobs, library, kind):
    make, steps = SHUFFLED[kind]
    orders = order_of_fit(library, make(), steps)
    assert orders[0] != orders[1] or kind == "cached"
    options = {"steps": steps or 0, "flavor": library.__name__}
    source = opened(blobs, make(), **options)
    for epoch, order in enumerate(orders):
        dataset = SinglePass(source.slices(epoch, 0, 1))
        iter(dataset)  # as a worker's fit may do
        assert [y.numpy().tolist() for (_, y), _ in dataset] == order
        assert labels(opened(blobs, make(), **options), epoch) == order, "a worker that was started anew"


def test_an_iterator_of_a_fit_is_deleted_by_a_thread_of_its_own(blobs):
    """TensorFlow may wait as long again as the iterator has existed."""
    deleted = queue.SimpleQueue()
    iterator = iter(SinglePass(opened(blobs, arrays().batch(64)).slices(0, 0, 2)))
    resource = iterator._iterator_resource
    weakref.finalize(resource, lambda: deleted.put(threading.current_thread().name))
    next(iterator)
    del iterator
    gc.collect()
    time.sleep(0.1)  # the thread has it, and waits until it holds the last reference
    del resource
    assert deleted.get(timeout=120) == "deletion of iterators"


def test_a_pipeline_is_traced_once_for_all_epochs(blobs):
    source = opened(blobs, arrays().shuffle(N).batch(64))
    first = source.slices(0, 0, 2)
    assert source.slices(1, 0, 2) is first and source.slices(0, 0, 2) is not first


def read_to_draw(dataset):
    return pipeline.read_to_draw(pipeline.take_apart(dataset))


def test_as_little_of_a_missed_pass_is_read_as_its_orders_need():
    once = arrays().shuffle(9, seed=1)
    kept = arrays().shuffle(9, seed=1, reshuffle_each_iteration=False)
    sliced, _ = divided(once.map(lambda x, y: (x * 2, y)).batch(4), None)
    assert [read_to_draw(data) for data in (arrays(), once, kept.shuffle(9), kept.repeat(2), sliced.dataset)] == [0] * 5
    assert read_to_draw(arrays().repeat(2).shuffle(9)) == 0, "the shuffle reads the rows once"
    assert read_to_draw(once.map(lambda x, y: y).shuffle(9)) == 1
    assert read_to_draw(once.repeat(2)) == read_to_draw(once.concatenate(arrays())) == pipeline.ALL


def test_validation_of_a_later_epoch_reads_no_more_of_a_cached_pass_than_is_used(blobs):
    data = capture_data("keras", blobs, tf.data.Dataset.range(8).batch(4).cache().repeat()).train  # without end
    source = open_source(data, FitArguments(validation_steps=3, epochs=4), blobs, 0, training=False)
    assert [batch.numpy().tolist() for batch, _ in source.slices(2, 0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    "dataset",
    [
        tf.data.Dataset.range(40).batch(4),
        tf.data.Dataset.range(40).batch(4).repeat(),
        tf.data.Dataset.range(40).filter(lambda i: i < 38).batch(4),
        tf.data.Dataset.range(36).batch(4),
    ],
    ids=["ten", "infinite", "unknown", "nine"],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps", [4, 3, 30])
def test_steps_per_epoch_goes_on_as_keras_does(blobs, dataset, steps):
    keras_epochs = TFEpochIterator(x=dataset, steps_per_epoch=steps, distribute_strategy=tf.distribute.get_strategy())
    source = opened(blobs, dataset, steps=steps, steps_per_epoch=steps)
    for epoch in range(5):
        theirs = []
        with keras_epochs.catch_stop_iteration():
            for _, _, iterator in keras_epochs:
                theirs.append(next(iterator).numpy().tolist())
        assert [batch.numpy().tolist() for batch, _ in source.slices(epoch, 0, 1)] == theirs
        assert source.count(epoch) in (steps, len(theirs))


def test_tf_keras_goes_on_until_the_data_run_out(blobs):
    dataset = tf.data.Dataset.range(40).batch(4)
    source = opened(blobs, dataset, steps=4, steps_per_epoch=4, epochs=3, flavor="tf_keras")
    assert [len(list(source.slices(e, 0, 1))) for e in range(4)] == [source.count(e) for e in range(4)] == [4, 4, 2, 0]
    whole = opened(blobs, dataset, steps=10, steps_per_epoch=10, epochs=3, flavor="tf_keras")
    assert [len(list(whole.slices(e, 0, 1))) for e in range(2)] == [10, 10]


@pytest.mark.parametrize("steps", [0, 4])
def test_a_reader_skips_to_its_batches(blobs, steps):
    dataset = tf.data.Dataset.range(40).shuffle(40, seed=1).batch(4)
    source, whole = (opened(blobs, dataset, steps=steps, steps_per_epoch=steps or None) for _ in range(2))
    for epoch in range(3):
        expected = [batch.numpy().tolist() for batch, _ in whole.slices(epoch, 0, 1)]
        reader = source.reader(epoch)
        assert [reader(i).numpy().tolist() for i in (0, 1)] == expected[:2]
        with pytest.raises(ValueError, match="rising order"):
            reader(0)


def test_an_epoch_may_be_asked_for_again_or_late(blobs):
    dataset = tf.data.Dataset.range(40).shuffle(40).batch(4)
    for steps in (0, 3):
        one, late = (opened(blobs, dataset, steps=steps, steps_per_epoch=steps or None) for _ in range(2))
        seen = [[batch.numpy().tolist() for batch, _ in one.slices(e, 0, 1)] for e in range(6)]
        for epoch in (5, 2, 2):
            assert [batch.numpy().tolist() for batch, _ in late.slices(epoch, 0, 1)] == seen[epoch]


@pytest.mark.parametrize("flavor", ["keras", "tf_keras"])
def test_class_weight_is_folded(blobs, flavor):
    dataset = tf.data.Dataset.from_tensor_slices((X[:8], Y[:8] % 2)).batch(4)
    ((element, _), *_) = opened(blobs, dataset, class_weight={0: 1.0, 1: 3.0}, flavor=flavor).slices(0, 0, 1)
    npt.assert_array_equal(element[2], [1, 3, 1, 3])
    handler = DataHandler(dataset, class_weight={0: 1.0, 1: 3.0})
    (_, iterator), *_ = handler.enumerate_epochs()
    assert next(iterator)[2].dtype == element[2].dtype


def test_validation_takes_its_steps_from_the_start_each_time(blobs):
    data = capture_data("keras", blobs, X, validation=FitValidation(tf.data.Dataset.range(40).batch(4), steps=3))
    source = open_source(data.validation, FitArguments(validation_steps=3), blobs, 0, training=False)
    for epoch in (0, 2):
        assert [batch[0].numpy() for batch, _ in source.slices(epoch, 0, 1)] == [0, 4, 8]


def refused():
    yield "EagerPyFunc", tf.data.Dataset.range(4).map(lambda i: tf.py_function(lambda v: v, [i], tf.int64)).batch(2)
    yield "RandomUniform", tf.data.Dataset.range(4).map(lambda i: tf.random.uniform([])).batch(2)
    yield "PyFunc", tf.data.Dataset.from_generator(lambda: iter([[1]]), output_signature=tf.TensorSpec([1], tf.int32))
    yield "writes files", tf.data.Dataset.range(4).cache("/tmp/never-written").batch(2)
    yield "DatasetSpec", tf.data.Dataset.range(4).window(2)
    yield "single values", tf.data.Dataset.range(4)


@pytest.mark.parametrize("why,dataset", [pytest.param(*case, id=case[0]) for case in refused()])
def test_what_cannot_be_rebuilt_is_refused_with_its_reason(blobs, why, dataset):
    with pytest.raises(Refused, match=why):
        capture(dataset, blobs, seed=0)


def test_arrays_over_the_limit_are_refused_before_they_are_serialized(monkeypatch):
    monkeypatch.setattr(pipeline, "LIMIT_BYTES", X.nbytes + Y.nbytes - 1)
    dataset = tf.data.Dataset.zip((arrays().shuffle(9), tf.data.Dataset.range(3))).batch(2)
    with pytest.raises(Refused, match=f"arrays of {X.nbytes + Y.nbytes:,} bytes"):
        pipeline.take_apart(dataset)
