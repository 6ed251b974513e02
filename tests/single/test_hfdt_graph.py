"""The operations that an exchange adds to a step's graph: their number determines the cost of a small model's step."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from fdt.keras import named
from fdt.trainable import Trainable
from hfdt.algorithms import allreduce
from hfdt.collectives.adapters import CountedComm, Packed
from hfdt.worker.exchange import GradientExchange, buckets
from hfdt.worker.sharded_model import ShardedModel
from hfdt.worker.step_context import StepContext, StepTerms

GIVEN = [np.arange(6, dtype="float32").reshape(2, 3), np.float32(7), np.zeros((0, 2), "float32")]


class Twice:
    """A comm of two ranks that have the same."""

    rank, size = 0, 2

    def __init__(self):
        self.vectors = []
        self._packed = Packed(self._reduce, 0, 2)

    def _reduce(self, vector, name):
        self.vectors.append((name, vector.copy()))
        return vector * 2

    def sum(self, tensors, name):
        return self._packed.sum(tensors, name)


def operations(function, *given):
    graph = tf.function(function, autograph=False).get_concrete_function(*given).graph
    return Counter(o.type for o in graph.get_operations() if o.type not in ("Placeholder", "Identity", "NoOp"))


def test_tensors_of_one_dtype_are_one_operation():
    step = StepContext(StepTerms(Twice()), (1, 2))
    given = map(tf.constant, GIVEN)
    assert operations(lambda *t: step.timed(t, lambda: step.sum(t, "gradient")), *given) == {"PyFunc": 1}


def test_weighing_is_one_operation_and_nothing_of_a_rank_without_samples_counts():
    step = StepContext(StepTerms(Twice()), (0, 2))
    weight = tf.constant(0.0)
    assert operations(step.weigh, tf.constant(GIVEN[0]), weight) == {"MulNoNan": 1}
    assert step.weigh(tf.constant([np.nan, np.inf, 1.0]), weight).numpy().tolist() == [0.0, 0.0, 0.0]
    assert step.weigh(tf.constant([3.0]), tf.constant(0.5)).numpy().tolist() == [1.5]


@pytest.mark.parametrize("compiled", [False, True])
def test_tensors_come_back_as_they_were_but_added(compiled):
    comm = Twice()
    given = [*map(tf.constant, GIVEN), tf.constant([[1, 2], [3, 4]], tf.bfloat16), tf.constant([5], tf.int64)]

    def add(*tensors):
        return comm.sum(tensors, "what")

    rows_unknown = [tf.TensorSpec([None, *t.shape[1:]] if t.shape.rank else [], t.dtype) for t in given]
    added = (tf.function(add, autograph=False, input_signature=rows_unknown) if compiled else add)(*given)
    for before, after in zip(given, added, strict=True):
        assert after.shape == before.shape and after.dtype == before.dtype
        np.testing.assert_array_equal(after, before + before)
    assert [(name, v.size) for name, v in comm.vectors] == [
        ("what.bfloat16", 4),
        ("what.float32", 7),
        ("what.int64", 1),
    ]


class Recording:
    """A comm of two ranks that have the same. It records each exchange: its name, tensors and sums."""

    rank, size = 0, 2

    def __init__(self):
        self.exchanges = []

    def sum(self, tensors, name):
        self.exchanges.append((name, tensors, [2 * t for t in tensors]))
        return self.exchanges[-1][-1]


def needs(tensors):
    """The names of all operations that must run before `tensors` exist."""
    found, ahead = set(), [t.op for t in tensors]
    while ahead:
        operation = ahead.pop()
        if operation.name not in found:
            found.add(operation.name)
            ahead += [*(t.op for t in operation.inputs), *operation.control_inputs]
    return found


@pytest.mark.parametrize("flavor", ["keras", "tf_keras"])
def test_a_bucket_leaves_before_the_gradients_of_the_next_are_there(flavor):
    keras = pytest.importorskip(flavor)
    hidden = [keras.layers.Dense(64, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(64, "relu")]
    model = keras.Sequential([keras.Input((32,)), *hidden, keras.layers.Dense(8)])
    model.compile(keras.optimizers.Adam(), "mse")
    batch = tf.zeros([4, 32]), tf.zeros([4, 8])
    named(flavor).build(model, tf.nest.map_structure(tf.TensorSpec.from_tensor, batch))
    comm = Recording()
    terms = StepTerms(CountedComm(comm), bucket_bytes=2000)
    sharded = ShardedModel(
        Trainable(named(flavor), model), terms, GradientExchange(allreduce.rule()), split=False, may_idle=True
    )
    with sharded.attached():
        step = tf.function(model.train_step, autograph=False)
        step.get_concrete_function((batch, tf.constant([2, 4], tf.int64)))
    names, sent, sums = zip(*(each for each in comm.exchanges if "gradient" in each[0]), strict=True)
    assert names == ("hfdt.gradient.0", "hfdt.gradient.1", "hfdt.gradient.2")
    assert [[tuple(t.shape) for t in tensors] for tensors in sent] == [
        [(8,), (64, 8)],
        [(64,), (64, 64)],
        [(64,), (64,), (64,), (32, 64)],
    ]
    assert list(terms.sent_bytes.values()) == [4 * sum(t.shape.num_elements() for t in tensors) for tensors in sent]
    later = set()
    for tensors, added in zip(reversed(sent), reversed(sums), strict=True):
        assert not needs(added) & later
        later |= {t.op.name for t in tensors} | {i.op.name for t in tensors for i in t.op.inputs if i.shape == t.shape}


def test_buckets_are_full_or_the_last_and_one_without_tensors_is_there_for_what_else_is_sent():
    tensors = [tf.zeros(n) for n in (5, 1, 10, 2, 3)]
    assert buckets(tensors, 20) == [[4, 3], [2], [1, 0]]
    assert buckets(tensors, 0) == buckets(tensors, 1 << 20) == [[4, 3, 2, 1, 0]]
    assert buckets([], 20) == [[]]


def test_numbers_of_python_that_a_step_returns_keep_their_digits():
    """Keras 3 returns tensors, and tf_keras numbers."""
    model = ShardedModel.__new__(ShardedModel)
    model.counted = tf.constant([0, 3, 4])
    for number in (1.4500414239683, np.float64(1.4500414239683), tf.constant(1.4500414239683, tf.float64)):
        assert float(model._weighed(number, summed=True)) == 1.4500414239683
        assert float(model._weighed(number, summed=False)) == 1.4500414239683 * 0.75
    assert float(model._weighed(7, summed=True)) == 7
