"""The adjoints of the script's sums and means (hfdt/exactness/adjoints.py)."""

import numpy as np
import pytest
import tensorflow as tf

from hfdt.exactness import adjoints

W = tf.Variable([2.0, 3.0])


def traced(step):
    """Return the files of the additions behind the gradients that `step` returns, and the function, traced."""
    found = []

    @tf.function(autograph=False)
    def function(x):
        with adjoints.recorded() as passes:
            gradients = step(x)
        found[:] = adjoints.behind(passes, gradients)
        return [each.adjoint for each in found], adjoints.totals(found, tf.constant(0.5, tf.float64))

    concrete = function.get_concrete_function(tf.TensorSpec([None, 2]))
    return [each.line.partition(":")[0] for each in found], concrete


def slopes(target):
    def step(x):
        with tf.GradientTape() as tape:
            y = target(x)
        return tape.gradient(y, [W])

    return step


@pytest.mark.parametrize(
    ("target", "adjoint"),
    [
        (lambda x: tf.reduce_sum(x * W), 1.0),
        (lambda x: tf.reduce_mean(x * W), 1 / 6),
        (lambda x: tf.nn.l2_loss(x * W), 1.0),
        (lambda x: 4 * tf.reduce_sum(x * W) / tf.cast(tf.shape(x)[0], tf.float32), 4 / 3),
    ],
    ids=["sum", "mean", "l2_loss", "by_rows"],
)
def test_an_elements_adjoint_does_not_depend_on_the_element(target, adjoint):
    lines, function = traced(slopes(target))
    [found], [totals] = function(tf.zeros([3, 2]))
    assert lines == ["test_adjoints.py"]
    np.testing.assert_allclose(found, np.full([3, 2], adjoint), rtol=1e-6)
    np.testing.assert_allclose(totals, [[3 * adjoint] * 2], rtol=1e-6)


def test_sums_of_one_tensor_count_together():
    def target(x):
        y = x * W
        return tf.reduce_sum(y) + tf.reduce_sum(tf.reduce_sum(y, axis=0))

    _, function = traced(slopes(target))
    found, _ = function(tf.zeros([3, 2]))
    assert sorted(each.shape.rank for each in found) == [1, 2]
    assert max(float(each[0, 0]) for each in found if each.shape.rank == 2) == 2.0


def test_a_pass_whose_gradients_are_not_applied_is_left_out():
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(x * W)
        x += tf.sign(tape.gradient(y, x))
        return slopes(lambda x: tf.reduce_mean(x * W))(x)

    lines, function = traced(step)
    [found], _ = function(tf.zeros([3, 2]))
    assert len(lines) == 1 and float(found[0, 0]) == pytest.approx(1 / 6)


def test_an_eager_step_has_none():
    with adjoints.recorded() as passes:
        gradients = slopes(lambda x: tf.reduce_sum(x * W))(tf.ones([3, 2]))
    assert adjoints.behind(passes, gradients) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "number"),
    [
        ([[4.0, 4.0], [2.0, 2.0]], [[4.0, 4.0], [4.0, 4.0]], 2),
        ([[4.0, 4.0]], [[4.0 + 1e-9, 4.0 + 1e-9]], 0),
        ([[0.0, 8.0]], [[1e-9, 8.0]], 0),  # of both signs: relative to the absolute values
        ([[1e-15, 1e-15]], [[2e-16, 2e-16]], 0),  # rounding errors of a loss that is 0
        ([[np.nan, np.nan], [1.0, 1.0]], [[1.0, 1.0], [2.0, 2.0]], 2),
        ((), (), 0),
    ],
)
def test_the_first_other_sum_is_named(ours, theirs, number):
    assert adjoints.first_other(ours, theirs, 1e-8) == number
