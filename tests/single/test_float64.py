"""A traced function that is rewritten in float64 (hfdt/exactness/float64.py)."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from fdt.compat.tensorflow import context
from hfdt.exactness.float64 import SUM_SCOPE, InFloat64


def added(x):
    """A sum over two ranks that have the same."""
    with tf.name_scope(SUM_SCOPE):
        return tf.reshape(tf.numpy_function(lambda a: 2 * a, [x], x.dtype), tf.shape(x))


def in_float64(function, *given):
    return InFloat64(tf.function(function, autograph=False).get_concrete_function(*given))


def test_it_is_computed_in_float64_and_variables_keep_their_type():
    weight = tf.Variable(0.1)

    def function(x):
        weight.assign_add(1.0)
        return [x * weight / 3.0]

    found = in_float64(function, tf.TensorSpec([None]))
    (out,) = found.sliced(tf.constant([1.0, 7.0]))
    assert out.dtype == tf.float64 and weight.dtype == tf.float32
    np.testing.assert_allclose(out, np.array([1.0, 7.0]) * float(weight) / 3, rtol=1e-15)
    assert found.rounded == set()


def test_alone_has_no_sums_not_even_in_loops():
    def function(x):
        (looped,) = tf.while_loop(lambda y: tf.reduce_sum(y) < 1.0, lambda y: [added(y) + 1.0], [x])
        return [added(x), looped]

    found = in_float64(function, tf.TensorSpec([1]))
    assert [out.numpy().tolist() for out in found.sliced(tf.constant([0.25]))] == [[0.5], [1.5]]
    assert [out.numpy().tolist() for out in found.alone(tf.constant([0.25]))] == [[0.25], [1.25]]
    assert [out.numpy().tolist() for out in found.sliced(tf.constant([0.25]))] == [[0.5], [1.5]]


def test_draws_are_constants_and_what_has_no_kernel_is_rounded():
    def function(x):
        return [tf.random.uniform(tf.shape(x)), tf.cast(tf.quantization.fake_quant_with_min_max_args(x), tf.float32)]

    found = in_float64(function, tf.TensorSpec([None]))
    draws, _ = found.sliced(tf.constant([0.5, 1.5]))
    assert draws.numpy().tolist() == [0.9995, 0.9995]
    assert found.rounded == {"FakeQuantWithMinMaxArgs"}


def test_a_check_runs_nothing():
    count = tf.Variable(0)

    def function(x):
        count.assign_add(1)
        return [added(x)]

    found = in_float64(function, tf.TensorSpec([1]))
    found.check(tf.constant([1.0]))
    assert int(count) == 0
    found.sliced(tf.constant([1.0]))
    assert int(count) == 1


def test_a_check_names_types_that_do_not_agree():
    found = in_float64(lambda x: [x * 2.0], tf.TensorSpec([1]))
    with pytest.raises((ValueError, tf.errors.OpError)):
        found.check(tf.constant([1]))


def test_its_functions_go_with_it():
    found = in_float64(lambda x: [added(x)], tf.TensorSpec([1]))
    found.alone(tf.constant([1.0]))
    names = list(found._added)
    assert len(names) == 2 and all(context.context().has_function(name) for name in names)
    del found
    gc.collect()
    assert not any(context.context().has_function(name) for name in names)


def test_complex_numbers_are_wide_too():
    def function(x):
        frequencies = tf.signal.rfft(x) * tf.complex(3.0, 0.0)
        return [tf.abs(frequencies), tf.signal.irfft(frequencies, [3])]

    found = in_float64(function, tf.TensorSpec([None, 3]))
    size, back = found.sliced(tf.constant([[0.1, 0.7, 0.2]]))
    given = np.float32([0.1, 0.7, 0.2]).astype(np.float64)
    np.testing.assert_allclose(size[0], 3 * np.abs(np.fft.rfft(given)), rtol=1e-14)
    np.testing.assert_allclose(back[0], 3 * given, rtol=1e-14)
    assert found.rounded == set()
