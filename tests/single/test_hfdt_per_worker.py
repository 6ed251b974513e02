"""`--batch per-worker`: a rank's batches of any kind of tensor, and the learning rate of every optimizer."""

import contextlib
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from fdt.job import BatchHooks
from fdt.keras import named
from hfdt import algorithms
from hfdt.worker import per_worker_batches
from hfdt.worker.progress import why_no_commits

ROWS = 6  # three batches of two
DATA = {
    "dense": tf.data.Dataset.range(ROWS),
    "ragged": tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1, 2], [3], [4, 5, 6], [7], [8, 9], [1]])),
    "sparse": tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(tf.eye(ROWS))),
}


@pytest.mark.parametrize("kind", DATA)
def test_a_rank_has_its_batches_or_a_row_that_counts_nothing(kind):
    whole = DATA[kind].batch(2).map(lambda batch: ((batch, tf.constant(3.0)), tf.constant([2, 2], tf.int64)))
    found = [list(per_worker_batches.cut(whole, rank, 2)) for rank in (0, 1)]
    rows = [[int((b.bounding_shape() if kind == "ragged" else b.shape)[0]) for (b, _), _ in each] for each in found]
    assert rows == [[2, 2], [2, 1]]
    assert [[share.numpy().tolist() for _, share in each] for each in found] == [[[2, 4], [2, 2]], [[2, 4], [0, 2]]]


class Adversaries(keras.Sequential):
    """A model with two optimizers of its own."""

    def prepare(self, first, second):
        self.first, self.second = first, second
        self.compile(keras.optimizers.LossScaleOptimizer(first))  # which Keras holds twice


@pytest.mark.parametrize("steps", [None, 2])
def test_each_optimizers_rate_is_scaled(steps):
    made = [keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps) for _ in range(2)]
    model = Adversaries([keras.Input((1,)), keras.layers.Dense(1)])
    model.prepare(*made)
    trainable = SimpleNamespace(flavor=named("keras"), model=model)
    rule, data, options = algorithms.make("allreduce"), SimpleNamespace(steps=8), {"warmup_epochs": "1"}
    for optimizer in made:
        optimizer.build(model.trainable_variables)
    with contextlib.ExitStack() as stack:
        assert per_worker_batches.scale(stack, trainable, rule, options, data, 2) == []
        for done, factor in ((0, 1.0), (2, 1.5), (8, 2.0)):
            for optimizer in made:
                optimizer._iterations.assign(done)
            rates = tf.function(lambda: [optimizer._get_current_learning_rate() for optimizer in made])()
            assert [float(rate) for rate in rates] == pytest.approx([0.1 * factor] * 2)


def test_no_commit_is_taken_within_an_epoch_whose_steps_depend_on_the_number_of_ranks():
    def reason(**options):
        fit = SimpleNamespace(batch_hooks=BatchHooks.NONE)
        return why_no_commits(SimpleNamespace(options=options, data=None, fit=fit), algorithms.make("allreduce"))

    assert reason() == ""
    assert "--batch per-worker" in reason(batch="per-worker")
