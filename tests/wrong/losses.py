"""Losses composed at random of operations of the rule table, and their comparison divided and whole.

A loss is a function `loss(x, y, weights)` of rows x [n, WIDTH] (float64), labels y [n] (int64, below CLASSES) and
weights, a list of variables or tensors of the shapes WEIGHTS. `str(loss)` is its source. Draws are Hypothesis's:

    @settings(derandomize=True)
    @given(composed(), st.integers(1, 11), st.sampled_from([2, 3]))
    def test(loss, rows, ranks):
        check(loss, arrays(rows), ranks, divided)

`divided(loss, arrays, ranks)` is the engine's: the loss and its gradients by the weights, as one process has them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

WIDTH, CLASSES = 3, 4
WEIGHTS = ((WIDTH, WIDTH), (WIDTH,), (CLASSES, WIDTH))
Shape = tuple[str, ...]  # "n": the rows, "d": WIDTH, "c": CLASSES
Arrays = tuple[np.ndarray, np.ndarray, list[np.ndarray]]
Divided = Callable[[Callable[..., Any], Arrays, int], tuple[float, list[np.ndarray]]]
ND, DN, NN, N, D, CD, NC = ("n", "d"), ("d", "n"), ("n", "n"), ("n",), ("d",), ("c", "d"), ("n", "c")
START: tuple[tuple[str, Shape], ...] = (("x", ND), ("y", ("labels",)), ("w", ("d", "d")), ("b", D), ("t", CD))

# Operand shapes, result shape, TensorFlow's source. Results stay within a few units, so that rounding does.
OPERATIONS: tuple[tuple[tuple[Shape, ...], Shape, str], ...] = (
    *(((s,), s, f"tf.{name}({{0}})") for s in (ND, N, NN, D, NC) for name in ("tanh", "sigmoid", "abs", "nn.softplus")),
    *(((s,), s, "tf.square(tf.tanh({0}))") for s in (ND, N, NN)),
    *(((s, s), s, f"({{0}} {sign} {{1}})") for s in (ND, N, NN, D) for sign in "+-"),
    *(((s, s), s, "tf.tanh({0}) * tf.tanh({1})") for s in (ND, N, NN, CD)),
    *(((s, s), s, "tf.maximum({0}, {1})") for s in (ND, N)),
    *(((s, s), s, "tf.where({0} > {1}, {0}, 0.5 * {1})") for s in (ND, N)),
    *(
        ((s,), s, f"tf.{name}({{0}}, axis={axis})")
        for s in (ND, NN)
        for axis in (0, 1)
        for name in ("nn.softmax", "nn.log_softmax", "sort")
    ),
    *(((s,), s, "tf.reverse({0}, [0])") for s in (ND, N)),
    *(((s,), s, "tf.roll({0}, 1, axis=0)") for s in (ND, N)),
    *(((s,), s, "tf.cumsum({0}, axis=0) / rows") for s in (ND, N)),
    *(((s,), s, "({0} - tf.reduce_mean({0}, axis=0))") for s in (ND, N, NN)),
    *(((s,), s, "tf.math.l2_normalize({0}, axis=-1, epsilon=0.1)") for s in (ND, N, CD)),
    *(((s,), s, "tf.gather({0}, tf.argsort({0}[:, 0], stable=True))") for s in (ND, NN)),
    *(
        ((s,), r, f"tf.reduce_{name}({{0}}, axis={axis})")
        for s, axis, r in ((ND, 1, N), (NN, 1, N), (NN, 0, N), (ND, 0, D))
        for name in ("mean", "max", "min", "logsumexp")
    ),
    ((ND, D), ND, "({0} + {1})"),
    ((ND, N), ND, "({0} - {1}[:, None])"),
    ((NN, N), NN, "tf.tanh({0}) * tf.tanh({1})[None]"),
    ((ND, ("d", "d")), ND, "tf.matmul({0}, {1})"),
    ((ND, ND), NN, "tf.matmul({0}, {1}, transpose_b=True)"),
    ((ND, ND), ("d", "d"), "tf.matmul({0}, {1}, transpose_a=True) / rows"),
    ((NN, ND), ND, "tf.matmul({0}, {1}) / rows"),
    ((ND, CD), NC, "tf.einsum('nd,cd->nc', {0}, {1})"),
    ((ND,), NN, "tf.reduce_sum(({0}[:, None] - {0}[None]) ** 2, -1)"),
    ((ND,), DN, "tf.transpose({0})"),
    ((DN,), ND, "tf.transpose(tf.tanh({0}))"),
    ((DN,), ND, "tf.reshape({0}, tf.shape({0})[::-1])"),
    ((ND,), ND, "tf.reshape(tf.reshape({0}, [-1]), [-1, 3])"),
    ((N,), NN, "tf.linalg.diag(tf.tanh({0}))"),
    ((NN,), N, "tf.linalg.diag_part({0})"),
    ((ND,), N, "{0}[:, 0]"),
    ((ND,), ND, "tf.concat([{0}[1:], {0}[:1]], 0)"),
    ((CD, ("labels",)), ND, "(tf.gather({0}, {1}) + 0.1 * x)"),  # without x, equal rows: ties
    ((ND, ("labels",)), CD, "tf.math.unsorted_segment_sum({0}, {1}, 4) / rows"),
    ((ND, ("labels",)), CD, "tf.tensor_scatter_nd_add(tf.zeros_like(t), {1}[:, None], {0}) / rows"),
    ((NC, ("labels",)), N, "tf.nn.sparse_softmax_cross_entropy_with_logits({1}, {0})"),
    ((NC, ("labels",)), NC, "tf.tanh({0}) * tf.one_hot({1}, 4, dtype=tf.float64)"),
    ((ND,), N, "tf.map_fn(lambda row: tf.reduce_sum(tf.tanh(row)), {0})"),
    ((ND,), ND, "tf.stop_gradient({0})"),
)
TO_NUMBER = (
    "tf.reduce_mean({0})",
    "tf.reduce_sum({0})",
    "tf.reduce_sum({0}) / rows",
    "tf.reduce_max({0})",
    "tf.sqrt(tf.reduce_sum({0} ** 2) + 1.0)",
    "tf.math.reduce_variance({0})",
    "tf.reduce_sum(tf.math.top_k(tf.reshape({0}, [-1]), 1).values)",
    "tf.reduce_sum({0}) / (1.0 + tf.reduce_sum(tf.abs({0})))",
    "tf.math.log(1.0 + tf.reduce_mean({0} ** 2))",
    "tf.reduce_mean(tf.boolean_mask({0}, {0} >= tf.reduce_mean({0})))",
)
JOINED = ("{0} + {1}", "{0} - 0.5 * {1}", "{0} * tf.tanh({1})", "{0} / (1.0 + {1} ** 2)", "tf.maximum({0}, {1})")


@dataclass(frozen=True)
class Composed:
    """`lines`: assignments of TensorFlow's source, the last one to `loss`."""

    lines: tuple[str, ...]

    def __call__(self, x: tf.Tensor, y: tf.Tensor, weights: Sequence[Any]) -> tf.Tensor:
        w, b, t = (tf.convert_to_tensor(each) for each in weights)
        names = {"tf": tf, "x": x, "y": y, "w": w, "b": b, "t": t, "rows": tf.cast(tf.shape(x)[0], tf.float64)}
        exec("\n".join(self.lines), names)
        return names["loss"]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    __repr__ = __str__


@st.composite
def composed(draw: st.DrawFn, longest: int = 6) -> Composed:
    """Draw a loss of up to `longest` operations and one to three reductions of their results."""
    pool, lines = list(START), []
    for number in range(draw(st.integers(1, longest))):
        shapes = {shape for _, shape in pool}
        operands, result, source = draw(st.sampled_from([o for o in OPERATIONS if shapes.issuperset(o[0])]))
        chosen = [draw(st.sampled_from([name for name, shape in reversed(pool) if shape == s])) for s in operands]
        lines.append(f"v{number} = {source.format(*chosen)}")
        pool.append((f"v{number}", result))
    made = [name for name, _ in pool[len(START) :]]
    numbers = [_reduced(draw, made[-1])]
    numbers += [_reduced(draw, draw(st.sampled_from(made))) for _ in range(draw(st.integers(0, 2)))]
    loss = numbers[0]
    for number in numbers[1:]:
        loss = draw(st.sampled_from(JOINED)).format(f"({loss})", f"({number})")
    return Composed((*lines, f"loss = {loss}"))


def _reduced(draw: st.DrawFn, name: str) -> str:
    return draw(st.sampled_from(TO_NUMBER)).format(name)


def arrays(rows: int, seed: int = 0) -> Arrays:
    """Make x [rows, WIDTH], y [rows] and the weights."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(rows, WIDTH)), rng.integers(0, CLASSES, rows)
    return x, y, [rng.normal(size=shape) * 0.5 for shape in WEIGHTS]


def whole(loss: Callable[..., Any], given: Arrays, *, traced: bool = False) -> tuple[float, list[np.ndarray]]:
    """Compute the loss and its gradients by the weights in this process."""
    x, y, values = given
    weights = [tf.Variable(value) for value in values]

    def value_and_gradients(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            value = loss(x, y, weights)
        return value, tape.gradient(value, weights, unconnected_gradients="zero")

    run = tf.function(value_and_gradients) if traced else value_and_gradients
    value, gradients = run(tf.constant(x), tf.constant(y))
    return float(value), [tf.convert_to_tensor(g).numpy() for g in gradients]


def check(loss: Callable[..., Any], given: Arrays, ranks: int, divided: Divided, tolerance: float = 1e-9) -> None:
    """Compare `divided(loss, given, ranks)` with one process. Raises AssertionError with the loss's source."""
    value, gradients = whole(loss, given)
    found, others = divided(loss, given, ranks)
    np.testing.assert_allclose(found, value, rtol=tolerance, atol=tolerance, err_msg=f"loss of\n{loss}")
    for number, (mine, theirs) in enumerate(zip(gradients, others, strict=True)):
        scale = max(1.0, float(np.abs(mine).max()))
        np.testing.assert_allclose(
            theirs, mine, rtol=0, atol=tolerance * scale, err_msg=f"gradient {number}, {ranks} ranks, of\n{loss}"
        )
