"""The adjoints of the script's sums and means (hfdt/exactness/adjoints.py)."""

import numpy as np
import pytest
import tensorflow as tf

from hfdt.exactness import adjoints

W = tf.Variable([2.0, 3.0])
SUM, MEAN = 3.0, 1.0  # the totals that an addition within another graph is given


def traced(step):
    """Return the files of the additions behind the gradients that `step` returns, and the function, traced."""
    found = []

    @tf.function(autograph=False)
    def function(x):
        with adjoints.recorded(SUM, MEAN) as passes:
            gradients = step(x)
        found[:] = adjoints.behind(passes, gradients)
        sums = [adjoints.over_ranks(each, tf.constant(0.5, tf.float64), 1.0) for each in adjoints.totals(found)]
        return [a for each in found for a in each.adjoints], sums

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
    np.testing.assert_allclose(totals, [[[3 * adjoint] * 2, [6 * adjoint] * 2]], rtol=1e-6)


@pytest.mark.parametrize(
    ("adds_up", "adjoints_of_result"),
    [
        (lambda x: tf.linalg.matmul(x, x * W, transpose_a=True)[0, 0], [[3, 0], [0, 0]]),
        (lambda x: tf.tensordot(x, x * W, [[0, 1], [0, 1]]), [[6]]),
        (lambda x: tf.reduce_mean(x @ tf.reshape(W, [2, 1])), [[2 / 3]] * 3),
        (lambda x: tf.matmul(x[None], x[None] * W, adjoint_a=True)[0, 0, 1], [[[0, 3], [0, 0]]]),
        (lambda x: tf.einsum("bi,bi->", x, x * W), 6),
        (lambda x: tf.einsum("b...i,i->b...", x[:, None], W)[0, 0], [[2], [0], [0]]),
    ],
    ids=["transposed", "tensordot", "mean", "batches", "einsum", "ellipsis"],
)
def test_an_element_of_a_product_of_matrices_counts_for_each_of_its_addends(adds_up, adjoints_of_result):
    _, function = traced(slopes(adds_up))
    [found, *_], _ = function(tf.zeros([3, 2]))
    np.testing.assert_allclose(found, adjoints_of_result, rtol=1e-6)


def test_sums_of_one_tensor_are_one_addition():
    def target(x):
        y = x * W
        return tf.reduce_sum(y) + tf.reduce_sum(tf.reduce_sum(y, axis=0))

    lines, function = traced(slopes(target))
    _, [totals] = function(tf.zeros([3, 2]))
    assert len(lines) == 2  # and the sum of the two columns
    assert sorted(totals[:, 1, 0].numpy().tolist()) == [2.0, 12.0]


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


def test_gradients_that_the_script_divides_by_rows_have_no_pass():
    def step(x):
        rows = tf.cast(tf.shape(x)[0], tf.float32)
        return [g / rows for g in slopes(lambda x: tf.reduce_sum(x * W))(x)]

    lines, _ = traced(step)
    assert lines == []


def test_gradients_without_a_tape_have_adjoints():
    lines, function = traced(lambda x: tf.gradients(tf.reduce_sum(x * W), [W]))
    [found], _ = function(tf.zeros([3, 2]))
    assert len(lines) == 1 and float(found[0, 0]) == 1.0


def test_sums_by_the_same_segments_may_have_other_shapes():
    def target(x):
        wide, narrow = (tf.math.segment_sum(y, tf.range(tf.shape(x)[0]) // 2) for y in (x * W, x[:, 0] * W[0]))
        return tf.reduce_sum(wide**2) + tf.reduce_sum(narrow)

    _, function = traced(slopes(target))
    found, _ = function(tf.ones([4, 2]))
    assert sorted(each.shape.rank for each in found) == [1, 1, 2, 2]


def test_a_complex_sum_has_adjoints():
    def target(x):
        return tf.math.imag(tf.reduce_sum(tf.complex(x * W, x * W)))

    lines, function = traced(slopes(target))
    [found], [totals] = function(tf.zeros([3, 2]))
    assert lines == ["test_adjoints.py"] and np.abs(found.numpy()).tolist() == [[1.0, 1.0]] * 3
    assert abs(float(totals[0, 1, 0])) == float(totals[0, 1, 1]) == 6.0


@pytest.mark.parametrize(
    ("target", "total"),
    [(lambda x: tf.reduce_sum(x * W), SUM), (lambda x: tf.reduce_mean(x * W), MEAN)],
    ids=["sum", "mean"],
)
def test_a_pass_in_a_branch_is_behind_the_branchs_results(target, total):
    lines, function = traced(lambda x: tf.cond(W[0] > 9, lambda: slopes(target)(x), lambda: [tf.zeros([2])]))
    found, _ = function(tf.ones([3, 2]))
    assert lines == ["test_adjoints.py"] and [float(each) for each in found] == [total]


def test_gradients_that_are_clipped_in_a_branch_have_their_pass():
    def step(x):
        [g] = slopes(lambda x: tf.reduce_sum(x * W))(x)
        return [tf.cond(tf.norm(g) > 9, lambda: g / 2, lambda: g)]

    lines, _ = traced(step)
    assert lines == ["test_adjoints.py"]


def branching(x):
    y = x * W
    if tf.shape(y)[0] > 9:  # AutoGraph converts it
        y = y / 2
    return tf.reduce_sum(y)


def drawing(x):
    return tf.reduce_sum(x * W) + 0 * tf.random.normal([])


@pytest.mark.parametrize(
    ("options", "adds_up", "seen"),
    [
        ({}, lambda x: tf.reduce_sum(x * W), True),
        ({"autograph": False}, lambda x: tf.reduce_sum(x * W), True),
        ({}, branching, True),
        ({}, drawing, False),  # its numbers would be others in another graph
        ({"jit_compile": True}, lambda x: tf.reduce_sum(x * W), False),
        ({"input_signature": [tf.TensorSpec([None, 2])]}, lambda x: tf.reduce_sum(x * W), False),
    ],
    ids=["plain", "no_autograph", "branch", "random", "jit", "signature"],
)
def test_a_sum_in_a_function_of_the_script_has_adjoints(options, adds_up, seen):
    lines, function = traced(slopes(tf.function(adds_up, **options)))
    found, _ = function(tf.zeros([3, 2]))
    assert lines == ["test_adjoints.py"]
    assert found[0].numpy().tolist() == ([[1.0, 1.0]] * 3 if seen else SUM)


def looping(x):
    total = tf.constant(0.0)
    for _ in tf.range(2):
        total += tf.reduce_sum(x * W)
    return total


@pytest.mark.parametrize(
    ("adds_up", "total"),
    [
        (lambda x, n: off(lambda: tf.reduce_sum(x * W)), SUM),
        (lambda x, n: off(lambda: off(lambda: tf.nn.l2_loss(x * W))), SUM),
        (lambda x, n: off(lambda: tf.linalg.matmul(x, x * W, transpose_a=True)[0, 0]), SUM),
        (lambda x, n: off(lambda: tf.reduce_mean(x * W)), MEAN),
        (lambda x, n: off(lambda: tf.reduce_sum(x * W) / n), MEAN),
        (lambda x, n: off(lambda: tf.reduce_sum(x * W) / tf.cast(tf.shape(x)[0], tf.float32)), MEAN),
        (lambda x, n: off(lambda: tf.reduce_sum(x * W)) / n, MEAN),
        (lambda x, n: off(lambda: tf.reduce_sum(x * W) / tf.cast(tf.shape(x)[1], tf.float32)), SUM),
        (lambda x, n: off(lambda: tf.reduce_sum(x * W) / tf.cast(tf.shape(x)[-2], tf.float32)), MEAN),
        (lambda x, n: off(lambda: 0.1 * tf.reduce_sum(W**2)), None),
        (lambda x, n: off(lambda: tf.reduce_sum(tf.boolean_mask(W, W > 0))), None),
        (lambda x, n: off(lambda: tf.reduce_mean(tf.reduce_sum(x * W, -1))), MEAN),
        (lambda x, n: tf.function(looping)(x), SUM),
    ],
    ids=[
        *("sum", "nested", "product", "mean", "captured", "by_rows", "outside", "by_columns", "by_rows_from_behind"),
        *("weights", "some_weights", "of_features", "loop"),
    ],
)
def test_an_addition_in_a_branch_or_a_loop_is_told_from_its_operations(adds_up, total):
    lines, function = traced(slopes(lambda x: adds_up(x, tf.cast(tf.shape(x)[0], tf.float32))))
    found, _ = function(tf.zeros([3, 2]))
    assert [float(each) for each in found] == [total] * (total is not None)


def off(term):
    return tf.cond(W[0] > 1e9, term, lambda: tf.constant(0.0))


def test_additions_in_a_branch_may_be_of_segments_or_have_sparse_adjoints():
    """A tape in a loop does not keep the addends of segments, and what is gathered has the adjoints of some rows."""

    def body(total):
        with tf.GradientTape() as tape:
            kept = tf.math.unsorted_segment_sum(W * tf.ones([4, 2]), tf.zeros_like(tf.range(4)), 1)
            loss = tf.reduce_sum(kept)
        return total + tape.gradient(loss, W)

    def gathered(x):
        return tf.cond(x[0, 0] > 0, lambda: tf.reduce_sum(tf.gather(tf.reduce_sum(x * W, 0), [0, 1])), lambda: 0.0)

    def looped(_):
        return [tf.while_loop(lambda total: total[0] < 9, body, [tf.zeros([2])])[0]]

    assert traced(looped)[0] == []
    lines, function = traced(slopes(gathered))
    assert lines == ["test_adjoints.py"] * 1 and [float(each) for each in function(tf.ones([3, 2]))[0]] == [SUM]


def test_a_function_of_the_script_receives_and_returns_what_tensorflow_gives_it():
    made = []

    @tf.function
    def function(x, scale, half, *, power):
        if not made:
            made.append(tf.Variable(3.0))
        assert tf.is_tensor(scale) and tf.is_tensor(half) and power == 2
        return {"target": tf.reduce_sum(made[0] * scale * (x * W) ** power), "none": None, "number": 0.5}

    def target(x):
        result = function(x, np.float32([1.0, 1.0]), np.float32(0.5), power=2)
        assert result["none"] is None and tf.is_tensor(result["number"])
        return result["target"] * result["number"]

    lines, traced_function = traced(slopes(target))
    [found], _ = traced_function(tf.zeros([3, 2]))
    assert len(lines) == 1 and len(made) == 1 and found.numpy().tolist() == [[0.5, 0.5]] * 3


def test_variables_of_an_unused_result_have_gradients_of_zeros_as_behind_a_call():
    class Two(tf.Module):
        @tf.function
        def __call__(self, x):
            return tf.reduce_sum(x * W[0]), tf.RaggedTensor.from_row_lengths(x[:, 0] * other, [3], validate=False)

    two, other = Two(), tf.Variable(2.0)

    def step(x):
        with tf.GradientTape() as tape:
            y, _ = two(x)
        gradients = tape.gradient(y, [W, other])
        assert gradients[1] is not None
        return gradients

    lines, _ = traced(step)
    assert len(lines) == 1


def test_products_of_one_tensor_are_told_apart():
    def target(x):
        mean = tf.reduce_mean(tf.matmul(x * W, tf.ones([2, 1])))
        return mean + tf.matmul(x * W, tf.zeros_like(x), transpose_a=True)[0, 0]

    def of_one(x):
        y = x * W
        return tf.reduce_mean(tf.matmul(y, tf.ones([2, 1]))) + tf.matmul(y, tf.zeros_like(x), transpose_a=True)[0, 0]

    for each in (target, of_one):
        lines, _ = traced(slopes(each))
        assert len(lines) == 3


def test_an_eager_step_has_none():
    before = tf.GradientTape.gradient
    with adjoints.recorded() as passes:
        assert tf.GradientTape.gradient is before  # ranks that are threads trace nothing, and share the class
        gradients = slopes(lambda x: tf.reduce_sum(x * W))(tf.ones([3, 2]))
    assert adjoints.behind(passes, gradients) == []


def test_gradients_that_the_script_scales_have_their_pass():
    lines, function = traced(lambda x: [0.5 * g for g in slopes(lambda x: tf.reduce_sum(x * W))(x)])
    [found], _ = function(tf.zeros([3, 2]))
    assert len(lines) == 1 and float(found[0, 0]) == 1.0


@pytest.mark.parametrize(
    ("ours", "theirs", "number"),
    [
        ([[2.0, 2.0], [4.0, 4.0]], [4.0, 4.0], 1),
        ([[4.0, 4.0], [8.0, 8.0]], [4.0, 4.0], 0),  # a mean
        ([[2.0, 2.0], [4.0 + 1e-9, 4.0]], [4.0, 4.0], 1),
        ([[0.0, 4.0], [0.0, 8.0]], [0.0, 8.0], 1),  # of both signs
        ([[3.0, 3.0], [5.0, 5.0]], [4.0, 4.0], 0),  # neither: rows that are padded to other lengths
        ([[1e-15, 1e-15], [2e-15, 2e-15]], [2e-15, 2e-15], 0),  # rounding errors of a loss that is 0
        ([[np.nan, np.nan], [np.nan, np.nan]], [1.0, 1.0], 0),
    ],
)
def test_a_sum_has_the_whole_batchs_totals_without_weights(ours, theirs, number):
    assert adjoints.first_misread(np.array([ours]), np.array([[theirs, theirs]]), 1e-8) == number
    mean = [[1.0, 1.0], [2.0, 2.0]]
    assert adjoints.first_misread(np.array([mean, ours]), np.array([[mean[0]] * 2, [theirs] * 2]), 1e-8) == 2 * number
    assert adjoints.first_misread((), np.array([[theirs, theirs]]), 1e-8) == 0
