"""The comparison of batches between ranks: rank 1 draws another batch, or the same one."""

import numpy as np
import pytest
import tensorflow as tf

from fdt.data.pipeline import is_random
from replica.batches import DIFFERENT, BatchComparison
from replica.exchange import GroupedExchange
from tests.in_process_comm import on_ranks
from tests.single.thread_groups import MemoryGroup

X = np.random.default_rng(0).normal(size=(32, 5))


def lines_of(batches, steps=1):
    """The lines of two ranks. `batches(rank)` are a step's tensors; those of step `steps` are compared."""

    def run(comm):
        comparison = BatchComparison(GroupedExchange(MemoryGroup(comm.rank, 2, comm)))
        lines = []
        for step in range(1, steps + 1):
            for each in batches(comm.rank):
                comparison.add(tf.constant(each))
            lines.append(comparison.step(step))
        return lines

    return on_ranks(2, run)


@pytest.mark.parametrize(
    ("mine", "others"),
    [
        (X, X[::-1]),
        (X, X + np.eye(32, 5)),
        (X.astype(np.float32), 2 * X.astype(np.float32) + 1),
        (np.arange(32), np.roll(np.arange(32), 1)),
        (np.arange(32) % 2 == 0, np.arange(32) % 2 == 1),
        (X + 1j * X, X[::-1] + 1j * X),
        (np.array(["a", "b"]), np.array(["b", "a"])),
    ],
)
def test_another_batch_on_one_rank_is_said_once_on_each(mine, others):
    for lines in lines_of(lambda rank: [others if rank else mine], steps=3):
        assert [line is not None for line in lines] == [True, False, False]
        assert lines[0].startswith(DIFFERENT.split("{")[0])


@pytest.mark.parametrize(
    "values",
    [
        X,
        X.astype(np.float32),
        X > 0,
        np.array(["a", "b"]),
        np.zeros(4),
        np.full(3, np.nan),
        np.array([np.inf, -np.inf, 1e38]),
    ],
)
def test_the_same_batches_are_not(values):
    assert lines_of(lambda rank: [values, values], steps=12) == [[None] * 12] * 2


def test_rounding_is_no_difference():
    single = X.astype(np.float32)
    assert lines_of(lambda rank: [np.nextafter(single, np.float32(9)) if rank else single]) == [[None]] * 2
    half = single.astype(np.float16)
    assert lines_of(lambda rank: [half[::-1] if rank else half]) == [[None]] * 2


def test_batches_between_the_compared_steps_are_not_read():
    def batches(rank):
        calls[rank] += 1
        return [X[::-1] if rank and calls[rank] in (3, 9) else X]

    calls = [0, 0]
    assert lines_of(batches, steps=10) == [[None] * 10] * 2


LAYER = tf.keras.layers.GaussianNoise(0.1, dtype="float64")


def noisy(row):
    return row + tf.random.normal([], dtype=tf.float64)


@pytest.mark.parametrize(
    ("dataset", "random"),
    [
        (tf.data.Dataset.range(9).shuffle(3).batch(2), False),
        (tf.data.Dataset.from_tensor_slices(X).map(lambda row: 2 * row).batch(2), False),
        (tf.data.Dataset.from_tensor_slices(X).map(noisy).batch(2).prefetch(1), True),
        (tf.data.Dataset.from_tensor_slices(X).batch(2).map(lambda rows: LAYER(rows, training=True)), True),
        (tf.data.Dataset.range(2).flat_map(lambda n: tf.data.Dataset.from_tensors(X[0]).map(noisy)), True),
        (tf.data.Dataset.from_generator(lambda: iter(X), output_signature=tf.TensorSpec([5], tf.float64)), False),
    ],
)
def test_a_pipeline_with_random_maps_is_known(dataset, random):
    assert is_random(dataset) is random


def test_batches_of_a_random_pipeline_are_not_compared():
    pipeline = tf.data.Dataset.from_tensor_slices(X).map(noisy)

    def run(comm):
        comparison = BatchComparison(GroupedExchange(MemoryGroup(comm.rank, 2, comm)))
        comparison.add(tf.constant(X))
        comparison.drawn(pipeline)
        comparison.add(tf.constant(X + comm.rank))
        return comparison.step(1)

    assert on_ranks(2, run) == [None, None]
