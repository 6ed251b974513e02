"""The operations that an exchange adds to a step's graph: their number determines the cost of a small model's step."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from hfdt.collectives.adapters import Packed
from hfdt.worker.step_context import StepContext, StepTerms

GIVEN = [np.arange(6, dtype="float32").reshape(2, 3), np.float32(7), np.zeros((0, 2), "float32")]


class Twice:
    """A comm of two ranks that have the same."""

    rank, size = 0, 2

    def __init__(self):
        self.vectors = []
        self._packed = Packed(self._reduce)

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
    assert operations(lambda *t: step.timed_sum(t, "gradient"), *map(tf.constant, GIVEN)) == {"PyFunc": 1}


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
