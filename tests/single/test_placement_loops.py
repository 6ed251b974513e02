"""Loops and branches of traced functions, divided over ranks, against one process, in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replica.graph.flatten import functions_of
from replica.placement import REPLICATE, Partial, Placement, Shard
from replica.placement import divided as rows
from tests.single.placed_graphs import Made, Ran, divided

SIZES = (2, 3)
STEPS, FEATURES, UNITS = 3, 3, 5
X = np.random.default_rng(1).uniform(-1, 1, (7, STEPS, FEATURES))
TOKENS = np.where(np.arange(STEPS) < np.random.default_rng(2).integers(1, STEPS + 1, 7)[:, None], 3, 0)


def by_rows(array: Any, size: int, axis: int = 0) -> Shard:
    """Return the usual division."""
    return Shard(axis, rows(array.shape[axis], size))


def control_flow(graph: Any) -> list[Any]:
    """Return the loops and branches of a graph."""
    return [op for op in graph.get_operations() if op.type.endswith(("While", "If", "Case"))]


def assert_divided(ran: list[Ran], collectives: int = 2) -> None:
    """Assert that loops and branches are functions that were emitted, and that no more is sent than sums."""
    names = [name for op in control_flow(ran[0].emitted.graph) for name in functions_of(op)]
    assert names and all(name.startswith("divided_") for name in names), names
    assert len(ran[0].group.names) <= collectives and not ran[0].emitted.gathers, ran[0].emitted.gathers


def recurrent(make: Callable[[Any], Any], batch: int | None, token: bool = False) -> Callable[[], Made]:
    """Return what makes a step: a recurrent layer, its gradients, and plain gradient descent."""

    def made() -> Made:
        import keras

        keras.utils.set_random_seed(3)
        policy = {"dtype": "float64"}
        first = (
            keras.layers.Embedding(5, FEATURES, mask_zero=True, **policy) if token else keras.layers.Activation("tanh")
        )
        layers = [first, make(policy), keras.layers.Dense(1, **policy)]
        shape = (STEPS,) if token else (STEPS, FEATURES)
        model = keras.Sequential([keras.Input(shape, dtype="int32" if token else "float64"), *layers])
        spec = tf.TensorSpec((batch, *shape), tf.int32 if token else tf.float64)

        @tf.function(input_signature=[spec])
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - 1.0))
            gradients = tape.gradient(loss, model.trainable_variables)
            for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
                variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
            return loss

        return step, model.variables

    return made


def _layers(name: str, **given: Any) -> Callable[[Any], Any]:
    def make(policy: Any) -> Any:
        import keras

        if name == "Bidirectional":
            return keras.layers.Bidirectional(keras.layers.LSTM(UNITS, **policy), **policy)
        return getattr(keras.layers, name)(UNITS, **given, **policy)

    return make


RECURRENT = [
    (_layers("LSTM"), 7, 2),
    (_layers("LSTM"), None, 3),
    (_layers("LSTM", return_sequences=True), 7, 3),
    (_layers("LSTM", go_backwards=True), None, 2),
    (_layers("GRU"), 7, 2),
    (_layers("GRU"), None, 3),
    (_layers("GRU", reset_after=False, return_sequences=True), 7, 2),
    (_layers("SimpleRNN"), None, 2),
    (_layers("Bidirectional"), 7, 3),
    (_layers("Bidirectional"), None, 2),
]


@pytest.mark.parametrize(("make", "batch", "size"), RECURRENT)
def test_recurrent_layers(make: Any, batch: int | None, size: int) -> None:
    assert_divided(divided(recurrent(make, batch), [X], [by_rows(X, size)], size))


@pytest.mark.parametrize(("name", "batch", "size"), [("LSTM", 7, 2), ("LSTM", None, 3), ("GRU", None, 2)])
def test_padded_sequences(name: str, batch: int | None, size: int) -> None:
    made = recurrent(_layers(name, return_sequences=name == "GRU"), batch, token=True)
    assert_divided(divided(made, [TOKENS.astype(np.int32)], [by_rows(TOKENS, size)], size))


# -- loops by hand: of a sequence, and of weights that are arguments; each returns a tensor by rows --------------------
W = np.random.default_rng(3).uniform(-1, 1, (FEATURES, FEATURES))


def tensor_array(x: Any, w: Any) -> Any:
    states = tf.TensorArray(x.dtype, size=STEPS)
    state = tf.zeros([tf.shape(x)[0], FEATURES], x.dtype)
    for t in tf.range(STEPS):
        state = tf.tanh(state @ w + x[:, t])
        states = states.write(t, state)
    return tf.transpose(states.stack(), [1, 0, 2])


def written_backwards(x: Any, w: Any) -> Any:
    """An element that is not set is read: zeros."""
    steps = tf.TensorArray(x.dtype, size=STEPS).unstack(tf.transpose(x, [1, 0, 2]))
    states = tf.TensorArray(x.dtype, size=STEPS, clear_after_read=False, element_shape=x[:, 0].shape)
    for t in tf.range(STEPS):
        states = states.write(t, tf.tanh(steps.read(STEPS - 1 - t) @ w) + states.read(tf.maximum(t - 1, 0)))
    return states.gather([STEPS - 1, 0])[0]


def scanned(x: Any, w: Any) -> Any:
    steps = tf.transpose(x, [1, 0, 2])
    return tf.scan(lambda state, step: tf.tanh(state @ w + step), steps, tf.zeros_like(x[:, 0]))[-1]


def while_loop(x: Any, w: Any) -> Any:
    def body(t: Any, state: Any, total: Any) -> Any:
        state = tf.nn.relu(state + x[:, t]) @ w
        return t + 1, state, total + tf.reduce_sum(state * state, 0)

    _, state, total = tf.while_loop(
        lambda t, *_: t < STEPS, body, [0, x[:, 0], tf.zeros([FEATURES], x.dtype)], maximum_iterations=STEPS
    )
    return state * total


def mean_in_front(x: Any, w: Any) -> Any:
    """The body multiplies by a mean over the batch."""
    mean, state = tf.reduce_mean(x, [0, 1]), x[:, 0]
    for _ in tf.range(3):
        state = tf.tanh(state * mean) @ w
    return state


def branch_in_loop(x: Any, w: Any) -> Any:
    state = x[:, 0]
    for t in tf.range(STEPS):
        if t % 2 == 0:
            state = tf.sin(state @ w)
        else:
            state = state * x[:, t]
    return state


def loop_in_loop(x: Any, w: Any) -> Any:
    state = x[:, 0]
    for t in tf.range(2):
        for _ in tf.range(t + 1):
            state = tf.tanh(state @ w + x[:, t])
    return state


def branch_on_loss(x: Any, w: Any) -> Any:
    y = tf.reduce_sum(x, 1) @ w
    if tf.reduce_mean(y * y) > 0.1:
        y = tf.tanh(y @ w)
    else:
        y = y * 2.0
    return y


def switched(x: Any, w: Any) -> Any:
    y = tf.reduce_sum(x, 1)
    index = tf.cast(tf.reduce_sum(y) > 0, tf.int32)
    return tf.switch_case(index, [lambda: tf.tanh(y @ w), lambda: tf.nn.relu(y), lambda: tf.ones_like(y)])


def whole_in_one_branch(x: Any, w: Any) -> Any:
    y = tf.reduce_sum(x, 1)
    return y + tf.cond(tf.reduce_sum(y) > 100.0, lambda: tf.ones([7, FEATURES], x.dtype), lambda: y @ w)


DIVIDED = [
    tensor_array, written_backwards, scanned, while_loop, mean_in_front, branch_in_loop, loop_in_loop, branch_on_loss,
    switched, whole_in_one_branch,
]  # fmt: skip


def with_gradients(function: Any, batch: int | None = 7) -> Callable[[], Made]:
    """Return what makes a function of rows and weights that returns its result, a loss and its gradients."""
    converted = tf.autograph.experimental.do_not_convert(tf.function(function))
    spec = [tf.TensorSpec((batch, STEPS, FEATURES), tf.float64), tf.TensorSpec(W.shape, tf.float64)]

    def step(x: Any, w: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((x, w))
            y = converted(x, w)
            loss = tf.reduce_mean(tf.square(y - 0.5))
        return y, loss, tape.gradient(loss, (x, w))

    return lambda: (tf.function(step, autograph=False, input_signature=spec), [])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("function", DIVIDED)
def test_loops_and_branches_by_hand(function: Any, size: int) -> None:
    ran = divided(with_gradients(function), [X, W], [by_rows(X, size), REPLICATE], size)
    assert_divided(ran, 3)
    assert isinstance(ran[0].emitted.outputs[0][0], Shard)


@pytest.mark.parametrize("function", [tensor_array, scanned, while_loop, branch_in_loop, branch_on_loss])
def test_loops_and_branches_of_unknown_rows(function: Any) -> None:
    assert_divided(divided(with_gradients(function, None), [X, W], [by_rows(X, 2), REPLICATE], 2), 3)


def test_a_rank_without_rows() -> None:
    for function in (tensor_array, while_loop):
        assert_divided(divided(with_gradients(function, None), [X[:2], W], [Shard(0, (1, 0, 1)), REPLICATE], 3), 3)


# -- what is computed whole -------------------------------------------------------------------------------------------
def each_row(x: Any, w: Any) -> Any:
    return tf.map_fn(lambda row: tf.tanh(row @ w), x)[:, 0]


def mean_in_loop(x: Any, w: Any) -> Any:
    state = x[:, 0]
    for _ in tf.range(2):
        state = tf.tanh(state @ w) - tf.reduce_mean(state, 0)
    return state


def until_small(x: Any, w: Any) -> Any:
    state = x[:, 0]
    while tf.reduce_sum(state * state) > 1.0:
        state = tf.tanh(state @ w) * 0.7
    return state


def row_taken(x: Any, w: Any) -> Any:
    state = x[:, 0]
    for t in tf.range(2):
        state = state @ w + state[t]
    return state


def shuffled(x: Any, w: Any) -> Any:
    state = x[:, 0]
    for _ in tf.range(2):
        state = tf.reverse(state, [0]) @ w
    return state


def two_axes(x: Any, w: Any) -> Any:
    """The divided dimension is another one after each iteration."""
    state = x[:3, 0]
    for _ in tf.range(3):
        state = tf.transpose(state @ w)
    return state + tf.reduce_sum(x)


def growing(x: Any, w: Any) -> Any:
    state = x[:, 0]
    for _ in tf.range(2):
        tf.autograph.experimental.set_loop_options(shape_invariants=[(state, tf.TensorShape([None, FEATURES]))])
        state = tf.concat([state, state @ w], 0)
    return state


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("function", [each_row, mean_in_loop, until_small, row_taken, shuffled, two_axes, growing])
def test_what_needs_other_ranks_in_every_iteration_is_whole(function: Any, size: int) -> None:
    ran = divided(with_gradients(function), [X, W], [by_rows(X, size), REPLICATE], size)
    names = [name for op in control_flow(ran[0].emitted.graph) for name in functions_of(op)]
    assert names and not all(name.startswith("divided_") for name in names), names


@pytest.mark.parametrize("size", SIZES)
def test_what_loops_assign_and_add_up(size: int) -> None:
    def made() -> Made:
        total, count = tf.Variable(np.zeros(FEATURES)), tf.Variable(0)

        @tf.function
        def step(x: Any) -> Any:
            for t in tf.range(STEPS):
                total.assign_add(tf.reduce_sum(x[:, t], 0))
                count.assign_add(tf.shape(x)[0])
            if tf.reduce_max(total) > 0:
                total.assign(total * 2.0)
            return tf.reduce_sum(x * total)

        return step, [total, count]

    divided(made, [X], [by_rows(X, size)], size)


@pytest.mark.parametrize("given", [Partial(), REPLICATE, Shard(1, (3, 0)), Shard(2, (2, 1))])
def test_arguments_of_any_placement(given: Placement) -> None:
    for function in (tensor_array, while_loop, branch_on_loss):
        divided(with_gradients(function), [X, W], [given, by_rows(W, 2, 1)], 2)
        divided(with_gradients(function), [X, W], [by_rows(X, 2), Partial()], 2)
