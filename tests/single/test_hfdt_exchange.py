"""The exchange and synchronised moments in memory, on plain TensorFlow."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from fdt.errors import UsageError, UserError
from hfdt import algorithms, compressors
from hfdt.exactness import batchnorm, losses
from hfdt.worker import step_context as steps
from hfdt.worker.compression import GradientCompression
from hfdt.worker.exchange import StepGroup
from hfdt.worker.nonfinite_guard import Guard
from hfdt.worker.sparse_gradients import _are_unique
from hfdt.worker.step_context import StepContext, StepTerms
from tests.in_process_comm import on_ranks


def test_the_mean_weighs_by_share_and_a_rank_without_samples_is_not_heard():
    shares, values = [3, 1, 0], [1.0, 5.0, np.nan]

    def work(comm):
        step = StepContext(StepTerms(comm), tf.constant([shares[comm.rank], 4], tf.int64))
        return StepGroup(step).mean([None, tf.constant([values[comm.rank]])])

    for none, mean in on_ranks(3, work):
        assert none is None
        np.testing.assert_allclose(mean, [2.0])


def test_what_is_not_finite_on_one_rank_is_so_on_all():
    def work(comm):
        step = StepContext(StepTerms(comm), tf.constant([1, 2], tf.int64))
        return StepGroup(step).mean([tf.constant([np.inf if comm.rank else 1.0])])[0]

    assert all(np.isinf(mean) for mean in on_ranks(2, work))


def test_slices_of_an_embedding_come_end_to_end_in_the_order_of_ranks():
    rows = [[4, 4], [1], [9]]

    def work(comm):
        step = StepContext(StepTerms(comm), tf.constant([len(rows[comm.rank]) if comm.rank < 2 else 0, 3], tf.int64))
        values = tf.fill([len(rows[comm.rank]), 2], 3.0)
        return StepGroup(step).mean([tf.IndexedSlices(values, tf.constant(rows[comm.rank]), tf.constant([10, 2]))])[0]

    for whole in on_ranks(3, work):
        np.testing.assert_array_equal(whole.indices, [4, 4, 1])
        np.testing.assert_allclose(whole.values, [[2, 2], [2, 2], [1, 1]])


@pytest.mark.parametrize("name", ["", "fp16"])
def test_buckets_do_not_change_the_numbers(name):
    rng = np.random.default_rng(2)
    given = [[rng.normal(size=n).astype("float32") for n in (7, 1, 30, 5)] for _ in range(3)]
    counted = tf.Variable([0, 0, 1], dtype=tf.int64)
    untrained = SimpleNamespace(seeds=[], non_trainable=[], metrics=[])

    def mean(comm, bucket_bytes):
        assigned = tf.Variable([float(comm.rank)])
        compression = GradientCompression(compressors.make(name), name) if name else None
        terms = StepTerms(comm, compression=compression, bucket_bytes=bucket_bytes)
        terms.guard = Guard(untrained, counted, terms, skips=True)
        step = StepContext(terms, tf.constant([comm.rank + 1, 6], tf.int64))
        step.touched = {0: assigned}
        slices = tf.IndexedSlices(tf.fill([1, 2], 3.0), tf.constant([comm.rank]), tf.constant([10, 2]))
        group = StepGroup(step)
        *dense, rows = group.mean([given[comm.rank][0], None, *map(tf.constant, given[comm.rank][1:]), slices])
        exchanges = [name for name in terms.sent_bytes if "gradient" in name]
        return len(exchanges), [*dense, rows.values, rows.indices, assigned, group.whose]

    def work(comm):
        return [mean(comm, size) for size in (0, 1, 40)]

    for (one, whole), (each, apart), (few, mixed) in on_ranks(3, work):
        assert (one, each, few) == (1, 4, 2)
        for plain, *others in zip(whole, apart, mixed, strict=True):
            for other in others:
                assert (plain is None) == (other is None)
                assert plain is None or np.array_equal(plain, other)
        np.testing.assert_array_equal(whole[-3], [0, 1, 2])
        np.testing.assert_allclose(whole[-2], [0 / 6 + 2 / 6 + 6 / 6])
        assert not any(whole[-1])


@pytest.mark.parametrize("sizes", [(4, 4), (5, 2, 1), (7, 1, 0)])
def test_moments_and_their_gradients_are_those_of_the_whole(sizes):
    whole = tf.constant(np.random.default_rng(1).normal(3.0, 2.0, (sum(sizes), 3)), tf.float64)
    factor = tf.constant([[1.0, -2.0, 0.5]], tf.float64)

    def loss(x, mean, variance):
        return tf.reduce_mean(tf.math.sin(factor * (x - mean) / tf.sqrt(variance + 0.1)))

    with tf.GradientTape() as tape:
        tape.watch(whole)
        expected = loss(whole, *tf.nn.moments(whole, [0]))
    gradient = tape.gradient(expected, whole)
    ends = np.cumsum(sizes)

    def work(comm):
        n, end = sizes[comm.rank], ends[comm.rank]
        x = whole[end - n : end] if n else whole[:1]
        step = StepContext(StepTerms(comm), tf.constant([n, sum(sizes)], tf.int64))
        with steps.entered(step), tf.GradientTape() as tape:
            tape.watch(x)
            value = loss(x, *batchnorm.moments(step, x, [0], None))
            mine = step.weigh(tape.gradient(value, x), step.weight(x.dtype))
        return step.weigh(value, step.weight(x.dtype)), mine[:n]

    results = on_ranks(len(sizes), work)
    np.testing.assert_allclose(sum(value for value, _ in results), expected, rtol=1e-12)
    np.testing.assert_allclose(np.concatenate([g for _, g in results]), gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sizes", [(2, 1), (0, 1)])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight"])
def test_a_rank_without_samples_adds_nothing_to_the_divisor_of_a_loss(sizes, reduction):
    keras = pytest.importorskip("keras")
    rng, total = np.random.default_rng(1), sum(sizes)
    y, predicted = rng.normal(size=(2, total, 4, 1)).astype("float32")
    mask, weights = rng.random((total, 4)) < 0.6, rng.random((total, 4)).astype("float32")
    loss, ends = keras.losses.MeanSquaredError(reduction=reduction), np.cumsum(sizes)

    def value(low, high):
        given = tf.constant(predicted[low:high])
        given._keras_mask = tf.constant(mask[low:high])
        return loss(y[low:high], given, weights[low:high])

    def work(comm):
        n, end = sizes[comm.rank], ends[comm.rank]
        step = StepContext(StepTerms(comm), tf.constant([n, total], tf.int64))
        with steps.entered(step):
            mine = value(end - n, end) if n else value(0, 1)
        return step.weigh(mine, step.weight(mine.dtype))

    expected = value(0, total)
    with losses.installed("keras"):
        np.testing.assert_allclose(sum(on_ranks(2, work)), expected, rtol=1e-6)


def test_an_unknown_rule_is_refused_with_the_known_ones():
    assert "allreduce" in algorithms.names()
    with pytest.raises(UserError, match="allreduce.*Received: allreduse"):
        algorithms.make("allreduse")
    assert all(algorithms.describe(name) for name in algorithms.names())


def test_a_rules_file_that_is_for_the_other_engine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from nfdt.algorithms import asgd\ndef rule():\n    return asgd.rule()\n")
    said = r"must define rule\(...\) -> SyncAlgorithm \(hfdt/algorithm.py\). Received: .*mine.py, whose"
    with pytest.raises(UsageError, match=said):
        algorithms.make(str(path))


def test_a_rules_file_is_found_from_any_directory(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from hfdt.algorithms import allreduce\ndef rule(k: int = 1):\n    return allreduce.rule()\n"
    )
    monkeypatch.chdir(tmp_path)
    spelled = algorithms.spelled("mine.py(k=2)", {})
    monkeypatch.chdir("/")
    assert spelled == f"{tmp_path}/mine.py(k=2)" and algorithms.make(spelled)


def test_indices_of_a_lookup_are_unique_only_where_they_are_the_unique_values():
    table = tf.Variable(tf.ones([10, 2]))

    @tf.function
    def inner(ids):
        return tf.nn.embedding_lookup(table, tf.unique(ids)[0])

    lookups = {
        "unique values": lambda ids: tf.nn.embedding_lookup(table, tf.unique(tf.reshape(ids, [-1]))[0]),
        "in a function": inner,
        "their places": lambda ids: tf.nn.embedding_lookup(table, tf.unique(ids)[1]),
        "ids": lambda ids: tf.nn.embedding_lookup(table, ids),
        "unique rows": lambda ids: tf.nn.embedding_lookup(
            table, tf.raw_ops.UniqueV2(x=tf.reshape(ids, [2, 2]), axis=[0])[0]
        ),
    }
    found = {}

    @tf.function
    def step(ids):
        for name, lookup in lookups.items():
            with tf.GradientTape() as tape:
                rows = lookup(ids)
            found[name] = _are_unique(tape.gradient(rows, table).indices)

    step(tf.constant([1, 1, 2, 0]))
    assert found == {name: name in ("unique values", "in a function") for name in lookups}
