"""Embeddings whose indices are the same on every rank: they are found in a step's graph."""

import keras
import pytest
import tensorflow as tf

from hfdt.worker.sparse_gradients import is_alike

CONSTANT = tf.constant([2, 1, 2])
STATE = tf.Variable([1, 0])
TABLE = tf.Variable(tf.zeros([9, 4]))
SEED = keras.random.SeedGenerator(3)
ALIKE = {
    "range": lambda x: tf.range(6),
    "captured": lambda x: CONSTANT,
    "last": lambda x: tf.range(tf.shape(x)[-1]),
    "second": lambda x: keras.ops.arange(keras.ops.shape(x)[1]) + 1,
    "unstacked": lambda x: tf.range(tf.unstack(tf.shape(x))[1]),
    "cast": lambda x: tf.range(tf.shape(tf.cast(x, tf.float32))[1]),
    "looked_up": lambda x: tf.range(tf.shape(tf.gather(TABLE, x))[1]),
    "called": tf.function(lambda x: tf.range(tf.shape(x)[1])),
}
NOT_ALIKE = {
    "rows": lambda x: x[:, 0],
    "counted": lambda x: tf.range(tf.shape(x)[0]),
    "zeros": lambda x: tf.zeros_like(x),
    "tiled": lambda x: tf.tile(tf.range(6)[None], [tf.shape(x)[0], 1]),
    "broadcast": lambda x: tf.broadcast_to(tf.range(6), tf.shape(x)),
    "backwards": lambda x: tf.range(tf.shape(x)[1::-1][1]),
    "transposed": lambda x: tf.range(tf.shape(tf.transpose(x))[1]),
    "expanded": lambda x: tf.range(tf.shape(x[None])[1]),
    "ragged": lambda x: tf.range(tf.shape(tf.RaggedTensor.from_tensor(x, padding=0).to_tensor())[1]),
    "masked": lambda x: tf.range(tf.shape(tf.boolean_mask(x, x > 0))[0]),
    "variable": lambda x: STATE + 0,
    "seeded": lambda x: keras.random.randint((3,), 0, 6, seed=SEED),
    "random": lambda x: tf.random.uniform((3,), 0, 6, tf.int32),
    "fixed_draw": lambda x: tf.random.stateless_uniform((3,), (1, 2), 0, 6, tf.int32),
    "python": lambda x: tf.py_function(lambda: 3, [], tf.int32),
    "branch": lambda x: tf.cond(tf.reduce_sum(x) > 3, lambda: tf.range(3), lambda: tf.range(4)),
    "called": tf.function(lambda x: x[0]),
}


@pytest.mark.parametrize(
    ("indices", "expected"),
    [(f, True) for f in ALIKE.values()] + [(f, False) for f in NOT_ALIKE.values()],
    ids=[*ALIKE, *(f"not {name}" for name in NOT_ALIKE)],
)
def test_indices_that_any_rows_give(indices, expected):
    step = tf.function(lambda x: tf.convert_to_tensor(indices(x)), autograph=False)
    traced = step.get_concrete_function(tf.TensorSpec([None, None], tf.int32))
    assert is_alike(traced.outputs[0]) is expected
