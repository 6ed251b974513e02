"""Traced functions divided over ranks: outputs, variables and their order, against one process, in float64."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replica.graph.emitted import Argument
from replica.graph.flatten import flatten
from replica.graph.known import KnownValues
from replica.placement import REPLICATE, Partial, Replicate, Shard
from replica.placement import divided as rows
from tests.single.placed_graphs import Made, divided

SIZES = (2, 3)
X = np.random.default_rng(1).uniform(-1, 1, (7, 4))
W = np.random.default_rng(2).uniform(-1, 1, (4, 3))


def by_rows(array: Any, size: int) -> Shard:
    """Return the usual division."""
    return Shard(0, rows(len(array), size))


def plain(function: Any, **kwargs: Any) -> Any:
    """Return what makes a tf.function without variables."""
    return lambda: (tf.function(function, autograph=False, **kwargs), [])


def mlp() -> Made:
    import keras

    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(5, "relu", dtype="float64"), keras.layers.Dense(3, dtype="float64")]
    model = keras.Sequential([keras.Input((4,), dtype="float64"), *layers])
    optimizer = keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step, [*model.variables, *optimizer.variables]


@pytest.mark.parametrize("size", SIZES)
def test_a_step_with_adam_takes_one_collective(size: int) -> None:
    y = np.arange(7) % 3
    ran = divided(mlp, [X, y], [by_rows(X, size), by_rows(y, size)], size)
    assert len(ran[0].group.names) == 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bucket_bytes", [1, 100])
def test_buckets_change_no_bit(size: int, bucket_bytes: int) -> None:
    y = np.arange(7) % 3
    given = [X, y], [by_rows(X, size), by_rows(y, size)], size
    whole, parts = divided(mlp, *given), divided(mlp, *given, bucket_bytes=bucket_bytes)
    assert len(parts[0].group.names) == {1: 5, 100: 2}[bucket_bytes], "loss and gradients: 8 + 24 + 120, 40 + 160"
    for one, other in zip(whole, parts, strict=True):
        for found, expected in zip([*other.outputs, *other.variables], [*one.outputs, *one.variables], strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_bucket_starts_without_the_gradients_of_later_ones() -> None:
    y = np.arange(7) % 3
    graph = divided(mlp, [X, y], [by_rows(X, 2), by_rows(y, 2)], 2, bucket_bytes=1)[0].emitted.graph
    starts = [op for op in graph.get_operations() if op.type == "PyFunc" and op.inputs]
    assert len(starts) == 5 and starts[0] in starts[1].control_inputs
    for number, start in enumerate(starts):
        assert before(start).isdisjoint(t.op for later in starts[number + 1 :] for t in later.inputs)
        waits = [op for op in graph.get_operations() if op.type == "PyFunc" and not op.inputs]
        assert all(start in before(wait) for wait in waits), "a wait could take the thread that a start needs"


def before(op: Any) -> set[Any]:
    """Return the operations that run before this one."""
    found, stack = set(), [op]
    while stack:
        each = stack.pop()
        new = {*(t.op for t in each.inputs), *each.control_inputs} - found
        found |= new
        stack += new
    return found


def test_a_long_chain_of_known_values_needs_no_stack() -> None:
    @tf.function(autograph=False)
    def chain(n: Any) -> Any:
        for _ in range(5000):
            n = n + 1
        return n

    flat = flatten(chain.get_concrete_function(tf.TensorSpec((), tf.int32)).graph)
    known = KnownValues(flat, [Argument(REPLICATE, (), tf.int32)], [np.int32(1)])
    assert known.value(flat.outputs[0]) == 5001
    assert known.used == {0}


@pytest.mark.parametrize("size", SIZES)
def test_nested_functions(size: int) -> None:
    inner = tf.function(lambda x, w: (tf.matmul(x, w), tf.reduce_sum(x)))

    def outer(x: Any, w: Any) -> Any:
        product, total = inner(x, w)
        again, _ = inner(product @ tf.transpose(w), w)
        return again / total, total

    ran = divided(plain(outer), [X, W], [by_rows(X, size), REPLICATE], size)
    placements = [placement for placement, _ in ran[0].emitted.outputs]
    assert isinstance(placements[0], Shard) and isinstance(placements[1], Replicate)


@pytest.mark.parametrize("size", SIZES)
def test_a_branch_and_a_loop_get_whole_tensors(size: int) -> None:
    def function(x: Any, n: Any) -> Any:
        branch = tf.cond(tf.reduce_sum(x) > 0, lambda: x - tf.reduce_mean(x, 0), lambda: x * 2)
        looped = tf.while_loop(lambda i, _: i < n, lambda i, v: (i + 1, v + tf.reduce_max(v)), [0, branch])
        return branch, looped

    n = np.asarray(3, np.int32)
    divided(plain(function), [X, n], [by_rows(X, size), REPLICATE], size)
    divided(plain(function), [X - 5, n], [Partial(), REPLICATE], size)


def stateful() -> Made:
    variable, count = tf.Variable(np.ones(4)), tf.Variable(0)

    @tf.function
    def function(x: Any) -> Any:
        before = variable + 0.0
        variable.assign(tf.reduce_sum(x * variable, 0))
        middle = tf.reduce_mean(x * variable)
        variable.assign_add(before)
        count.assign_add(tf.shape(x)[0])
        variable.assign(variable * 2.0 + middle)
        return before, middle, variable.read_value(), count * 1

    return function, [variable, count]


@pytest.mark.parametrize("seed", range(6))
def test_assignments_keep_their_order(seed: int) -> None:
    for size in SIZES:
        divided(stateful, [X], [by_rows(X, size)], size, seed)


@pytest.mark.parametrize("size", SIZES)
def test_integers_and_shapes_that_python_computes_with(size: int) -> None:
    def function(x: Any, n: Any, axis: Any) -> Any:
        count = tf.shape(x)[0]
        halves = tf.reshape(x, [count, n, -1])
        ones = tf.ones([tf.size(x) // 4, 4], tf.float64)
        mean = tf.reduce_sum(x) / tf.cast(tf.reduce_prod(tf.shape(x)), tf.float64)
        return halves, x + ones, mean, tf.expand_dims(x, axis), tf.range(count)

    numbers = [np.asarray(2, np.int32), np.asarray(-1, np.int32)]
    ran = divided(plain(function), [X, *numbers], [by_rows(X, size), REPLICATE, REPLICATE], size)
    assert len(ran[0].group.names) == 1 and ran[0].emitted.used == {1, 2}
    assert [type(p) for p, _ in ran[0].emitted.outputs] == [Shard, Shard, Replicate, Shard, Replicate]


@pytest.mark.parametrize("size", SIZES)
def test_unknown_dimensions(size: int) -> None:
    def function(x: Any, w: Any) -> Any:
        y = tf.nn.softmax(x @ w)
        flat = tf.reshape(y, [-1])
        return y, tf.reshape(flat, tf.shape(y)), tf.reduce_mean(y), tf.boolean_mask(y, y[:, 0] > 0.3), x[1:], x[:, 1:]

    signature = [tf.TensorSpec([None, 4], tf.float64), tf.TensorSpec([4, None], tf.float64)]
    divided(plain(function, input_signature=signature), [X, W], [by_rows(X, size), REPLICATE], size)


@pytest.mark.parametrize("size", SIZES)
def test_outputs_used_twice_unused_passed_on_and_of_strings(size: int) -> None:
    def function(x: Any, unused: Any) -> Any:
        values, _ = tf.math.top_k(x, 2)
        a, _, c = tf.unstack(tf.reduce_sum(x, 0)[:3])
        return x, values, values, a, c, unused, tf.strings.as_string(a > c), tf.constant("text")

    divided(plain(function), [X, X], [by_rows(X, size), Shard(1, rows(4, size))], size)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "bool", "int8", "complex128"])
def test_what_is_replicated_keeps_its_dtype(dtype: str) -> None:
    def function(x: Any) -> Any:
        return tf.reverse(tf.cast(x, dtype), [0]), tf.reduce_sum(x)

    divided(plain(function), [np.arange(6.0).reshape(3, 2)], [Shard(0, (1, 2))], 2)


def test_a_rank_without_rows() -> None:
    def function(x: Any, w: Any) -> Any:
        return tf.reduce_mean(tf.nn.relu(x @ w)), tf.reduce_max(x), tf.sort(x, 0)

    divided(plain(function), [X[:2], W], [Shard(0, (1, 0, 1)), REPLICATE], 3)


@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_a_function_with_known_permutations(size: int) -> None:
    def function(x: Any, w: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(w)
            y = tf.transpose(tf.reshape(x @ w, [tf.shape(x)[0], 3, 1]), [1, 0, 2])
            loss = tf.reduce_mean(tf.square(y - tf.reduce_mean(y, axis=[0, 1], keepdims=True)))
        return loss, tape.gradient(loss, w)

    ran = divided(plain(function), [X, W], [by_rows(X, size), REPLICATE], size)
    assert len(ran[0].group.names) == 3  # the mean, its gradient's mean, the results


def test_strings_are_looked_up_whole() -> None:
    def function(x: Any) -> Any:
        return tf.gather(tf.constant(["a", "b", "c", "d"]), tf.argmax(x, 1)), tf.where(x[:, 0] > 0, "up", "down")

    divided(plain(function), [X], [by_rows(X, 2)], 2)


@pytest.mark.parametrize("size", SIZES)
def test_centred_rows_are_never_gathered(size: int) -> None:
    def function(x: Any) -> Any:
        centred = x - tf.reduce_mean(x, 0)
        return centred / tf.sqrt(tf.reduce_mean(centred * centred, 0) + 1e-3)

    ran = divided(plain(function), [X], [by_rows(X, size)], size)
    assert isinstance(ran[0].emitted.outputs[0][0], Shard) and len(ran[0].group.names) == 2


def test_a_gradient_is_sent_once() -> None:
    x = np.random.default_rng(4).uniform(-1, 1, (6, 40))

    def function(x: Any, momentum: Any) -> Any:
        gradient = tf.matmul(x, x, transpose_a=True)
        return momentum + 0.1 * (gradient - momentum), 0.9 + gradient * gradient

    ran = divided(plain(function), [x, np.ones((40, 40))], [by_rows(x, 2), REPLICATE], 2)
    assert ran[0].group.sent_bytes == 40 * 40 * 8


def test_statistics_that_several_operations_take_are_sent_once() -> None:
    def function(x: Any) -> Any:
        mean = tf.reduce_mean(x, 0, keepdims=True)
        variance = tf.reduce_mean(tf.math.squared_difference(x, tf.stop_gradient(mean)), 0)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3), 0.9 + 0.1 * tf.squeeze(mean, 0), variance * 7 / 6

    ran = divided(plain(function), [X], [by_rows(X, 2)], 2)
    assert len(ran[0].group.names) == 2 and ran[0].group.sent_bytes == 8 * 8


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("compress", ["fp16", "bf16"])
def test_many_small_sums_stay_exact_where_large_ones_are_sent_in_16_bits(size: int, compress: str) -> None:
    """Above 65,504 there is no float16, and above 256 not every count is a bfloat16."""
    counted = np.full((7, 40), 10_000, np.float32)
    divided(
        plain(lambda x: [tf.reduce_sum(x * float(i), 0) for i in range(1, 31)]),
        [counted],
        [by_rows(counted, size)],
        size,
        compress=compress,
    )


def test_shards_beside_sums_keep_vectors_of_their_own() -> None:
    """TensorFlow's float64 equals 2: an index alone is no key beside a dtype."""

    def function(x: Any) -> Any:
        turned = [tf.reverse(x * float(i), [0]) for i in range(1, 5)]
        return *turned, tf.reduce_sum(x * 2, 0), tf.reduce_sum(x * 3, 0)

    divided(plain(function), [X], [by_rows(X, 2)], 2)
