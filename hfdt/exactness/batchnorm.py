"""BatchNorm over the global batch: each layer's moments are combined over ranks.

Every rank sends one row [n, mean, variance] per layer, in one exchange; all combine the rows by

    mean = sum_r n_r/N mean_r        variance = sum_r n_r/N (variance_r + (mean_r - mean)^2)

which avoids cancellation (Chan, Golub and LeVeque, 1979). In the backward pass, the gradients of all ranks' losses with
respect to the combined moments are summed. This rank's part is divided by its weight, since the exchange multiplies by
it again.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from fdt.patches import Patch, patched
from fdt.typing import Layer, Tensor
from hfdt.worker import step_context as steps
from hfdt.worker.step_context import StepContext


def find(model: Any) -> list[Layer]:
    """Return the model's BatchNorm layers, those of nested models included."""
    layers = model._flatten_layers(include_self=False, recursive=True)
    return [layer for layer in layers if _is_batch_norm(layer)]


@contextlib.contextmanager
def synchronised(layers: list[Layer], flavor: str) -> Iterator[None]:
    """Combine the layers' moments over ranks while the context lasts; outside a step they are Keras's own."""
    patches = []
    for layer in layers:
        if flavor == "keras":
            patches.append(Patch(layer, "_moments", _keras_moments(layer)))
        else:
            patches += _tf_keras_patches(layer)
    with patched(patches), contextlib.ExitStack() as stack:
        if flavor == "tf_keras":
            for layer in layers:
                stack.enter_context(_unfused(layer))
        yield


def variables(layers: list[Layer]) -> list[Any]:
    """Return the variables that synchronised layers assign alike on every rank, which need no averaging."""
    return [v for layer in layers for v in layer.non_trainable_variables]


def _is_batch_norm(layer: Layer) -> bool:
    return any(c.__name__ in ("BatchNormalization", "BatchNormalizationBase") for c in type(layer).__mro__) and hasattr(
        layer, "_moments"
    )


def _keras_moments(layer: Layer) -> Any:
    def moments(original: Any, inputs: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
        step = steps.current()
        if step is None:
            return tuple(original(inputs, mask))
        return combined(step, *local_moments(inputs, layer._reduction_axes, mask))

    return moments


def local_moments(inputs: Tensor, axes: list[int], mask: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return (n, mean, variance) of a local batch along `axes`. `mask` has all axes but the last; n is per channel."""
    if mask is None:
        count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(inputs), axes)), inputs.dtype)
        mean = tf.reduce_mean(inputs, axes, keepdims=True)
        variance = tf.reduce_mean(tf.math.squared_difference(inputs, mean), axes)
        return count, tf.reshape(mean, [-1]), variance
    valid = tf.cast(tf.expand_dims(mask, -1), inputs.dtype)
    count = tf.reduce_sum(valid)
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs * valid, axes, keepdims=True), count)
    squares = tf.reduce_sum(tf.math.squared_difference(inputs, mean) * valid, axes)
    return count, tf.reshape(mean, [-1]), tf.math.divide_no_nan(squares, count)


def combined(step: StepContext, count: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the moments of all ranks' values; differentiable with respect to `mean` and `variance`."""
    count = tf.where(step.mine > 0, count, tf.zeros_like(count))  # a rank without samples computes on a copied row

    @tf.custom_gradient
    def combine(mean: Tensor, variance: Tensor) -> Any:
        rows = _gathered(step, tf.concat([tf.reshape(count, [1]), mean, variance], axis=0))
        counts, means, variances = tf.split(rows, [1, tf.size(mean), tf.size(mean)], axis=1)
        parts = tf.math.divide_no_nan(counts, tf.reduce_sum(counts))
        all_mean = tf.reduce_sum(parts * means, axis=0)
        all_variance = tf.reduce_sum(parts * (variances + tf.math.squared_difference(means, all_mean)), axis=0)

        def backward(d_mean: Tensor, d_variance: Tensor) -> tuple[Tensor, Tensor]:
            weight = step.weight(mean.dtype)
            upstream = [step.weigh(d_mean, weight), step.weigh(d_variance, weight)]
            d_mean, d_variance = step.sum(upstream, "batchnorm_gradient")
            mine = tf.math.divide_no_nan(parts[step.comm.rank, 0], weight)
            # all_mean depends on mean too, but the mean of (mean_r - all_mean) is 0: that term vanishes.
            return mine * (d_mean + 2 * (mean - all_mean) * d_variance), mine * d_variance

        return (all_mean, all_variance), backward

    all_mean, all_variance = combine(mean, variance)
    return tf.ensure_shape(all_mean, mean.shape), tf.ensure_shape(all_variance, variance.shape)


def _gathered(step: StepContext, row: Tensor) -> Tensor:
    """Return all ranks' rows, shape (size, len(row)): each rank adds its own to zeros."""
    place = tf.one_hot(step.comm.rank, step.comm.size, dtype=row.dtype)
    return step.sum([tf.where(place[:, None] > 0, row[None, :], tf.zeros_like(row)[None, :])], "batchnorm")[0]


# -- tf_keras ----------------------------------------------------------------------------------------------------------
def _tf_keras_patches(layer: Layer) -> list[Patch]:
    """Patch `_moments`, and apply the fused kernel's correction of the moving variance, as the kernel is not used."""
    bessel: list[Tensor] = []  # N / (N - 1), of the call that is being traced

    def moments(original: Any, inputs: Tensor, reduction_axes: list[int], keep_dims: bool, mask: Any = None) -> Any:
        step = steps.current()
        if step is None or keep_dims:
            return original(inputs, reduction_axes, keep_dims, mask=mask)
        count, mean, variance = local_moments(inputs, reduction_axes, mask)
        if getattr(layer, "_fdt_fused", False):
            total = _total(step, count)
            bessel[:] = [total / tf.maximum(total - 1, 1)]
        return combined(step, count, mean, variance)

    def assign(original: Any, variable: Any, value: Tensor, momentum: Any, inputs_size: Any) -> Any:
        if bessel and variable is layer.moving_variance:
            value = value * tf.cast(bessel.pop(), value.dtype)
        return original(variable, value, momentum, inputs_size)

    return [Patch(layer, "_moments", moments), Patch(layer, "_assign_moving_average", assign)]


def _total(step: StepContext, count: Tensor) -> Tensor:
    """Return the number of values per channel in the global batch: each sample has equally many."""
    return count / tf.cast(tf.maximum(step.mine, 1), count.dtype) * tf.cast(step.total, count.dtype)


@contextlib.contextmanager
def _unfused(layer: Layer) -> Iterator[None]:
    fused = layer.fused
    object.__setattr__(layer, "_fdt_fused", bool(fused))
    object.__setattr__(layer, "fused", False)
    try:
        yield
    finally:
        object.__setattr__(layer, "fused", fused)
