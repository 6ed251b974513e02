"""Large gradients are compared by sketches: linear maps that keep the norm (hfdt/exactness/trial.py)."""

import numpy as np
import pytest
import tensorflow as tf

from hfdt.exactness.trial import _sketch

ROWS, COLUMNS = 700, 300
RNG = np.random.default_rng(0)
ROW, COLUMN = RNG.normal(size=(ROWS, 1)), RNG.normal(size=(1, COLUMNS))
ONE = np.zeros((ROWS, COLUMNS))
ONE[345, 67] = 3.0
CASES = {
    "dense": RNG.normal(size=(ROWS, COLUMNS)),
    "one number": ONE,
    "constant": np.full((ROWS, COLUMNS), 0.1),
    "rank one": ROW * COLUMN,
    "one row": np.eye(ROWS)[:, :1] * COLUMN,
    "one column": ROW * np.eye(COLUMNS)[:1],
    "smooth": np.sin(np.arange(ROWS * COLUMNS) / 5000).reshape(ROWS, COLUMNS),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sketch_has_about_the_norm_of_its_gradient(name, dtype):
    made = _sketch(tf.constant(CASES[name], dtype))
    assert made.dtype == dtype and made.shape.num_elements() < ROWS * COLUMNS / 10
    assert 0.3 < float(tf.norm(made)) / np.linalg.norm(CASES[name]) < 3


def test_sketches_of_slices_add_up():
    a, b = (tf.constant(CASES[name], tf.float64) for name in ("dense", "rank one"))
    np.testing.assert_allclose(_sketch(0.25 * a + 0.75 * b), 0.25 * _sketch(a) + 0.75 * _sketch(b), atol=1e-11)


def test_small_and_sparse_gradients_are_compared_whole():
    small = tf.ones([256, 256])
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([1, 5]), tf.constant([1_000_000, 3]))
    assert _sketch(small) is small and _sketch(slices) is slices and _sketch(None) is None
