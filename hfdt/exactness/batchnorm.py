"""BatchNorm over the global batch: each layer's moments are combined over ranks.

Every rank sends one row [n, mean, variance] per layer, in one exchange; all combine the rows by

    mean = sum_r n_r/N mean_r        variance = sum_r n_r/N (variance_r + (mean_r - mean)^2)

which avoids cancellation (Chan, Golub and LeVeque, 1979). In the backward pass, the gradients of all ranks' losses with
respect to the combined moments are summed. This rank's part is divided by its weight, since the exchange multiplies by
it again.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from fdt.patches import Patch, patched
from fdt.typing import Layer, Tensor
from hfdt.worker import step_context as steps
from hfdt.worker.step_context import StepContext

OWN_STATISTICS = "each rank has its own BatchNorm statistics: numbers differ from those of one machine"


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


def _keras_moments(layer: Layer) -> Any:
    def of_step(original: Any, inputs: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
        step = steps.current()
        return tuple(original(inputs, mask)) if step is None else moments(step, inputs, layer._reduction_axes, mask)

    return of_step


def moments(step: StepContext, inputs: Tensor, axes: list[int], mask: Any) -> tuple[Tensor, Tensor]:
    """Return (mean, variance) per channel of all ranks' values along `axes`; differentiable by `inputs`.

    A mask has all axes of `inputs` but the last.
    """
    valid = _valid(inputs, mask)
    along = [1 if axis in axes else -1 for axis in range(inputs.shape.rank)]

    @tf.custom_gradient
    def of_all(inputs: Tensor) -> Any:
        counts, means, variances = _gathered(step, *_local(inputs, axes, valid))
        total = tf.reduce_sum(counts)
        parts = tf.math.divide_no_nan(counts, total)
        mean = tf.reduce_sum(parts * means, axis=0)
        variance = tf.reduce_sum(parts * (variances + tf.math.squared_difference(means, mean)), axis=0)

        def backward(d_mean: Tensor, d_variance: Tensor) -> Tensor:
            weight = step.weight(inputs.dtype)
            upstream = [step.weigh(d_mean, weight), step.weigh(d_variance, weight)]
            d_mean, d_variance = (tf.reshape(d, along) for d in step.sum(upstream, "batchnorm_gradient"))
            each = tf.math.divide_no_nan(tf.ones_like(total), total * weight)
            found = each * (d_mean + 2 * (inputs - tf.reshape(mean, along)) * d_variance)
            return found if valid is None else found * valid

        return (mean, variance), backward

    mean, variance = of_all(inputs)
    return tf.ensure_shape(mean, [_channels(inputs, axes)]), tf.ensure_shape(variance, [_channels(inputs, axes)])


def _channels(inputs: Tensor, axes: list[int]) -> int:
    return math.prod(size for axis, size in enumerate(inputs.shape) if axis not in axes)


def _valid(inputs: Tensor, mask: Any) -> Any:
    """Return 1 where a value counts, else 0; None without a mask."""
    return None if mask is None else tf.cast(tf.expand_dims(mask, -1), inputs.dtype)


def _count(inputs: Tensor, axes: list[int], valid: Any) -> Tensor:
    """Return the number of values per channel in a local batch."""
    return tf.cast(tf.size(inputs) // _channels(inputs, axes), inputs.dtype) if valid is None else tf.reduce_sum(valid)


def _local(inputs: Tensor, axes: list[int], valid: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return (n, mean, variance) of a local batch."""
    count = _count(inputs, axes, valid)
    if valid is None:
        mean = tf.reduce_mean(inputs, axes, keepdims=True)
        return count, mean, tf.reduce_mean(tf.math.squared_difference(inputs, mean), axes)
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs * valid, axes, keepdims=True), count)
    squares = tf.reduce_sum(tf.math.squared_difference(inputs, mean) * valid, axes)
    return count, mean, tf.math.divide_no_nan(squares, count)


def _gathered(step: StepContext, count: Tensor, mean: Tensor, variance: Tensor) -> list[Tensor]:
    """Return the counts, means and variances of all ranks, a row each: each rank adds its own to zeros."""
    row = tf.concat([tf.reshape(step.own(count), [1]), tf.reshape(mean, [-1]), variance], axis=0)
    place = [[step.comm.rank, step.comm.size - 1 - step.comm.rank], [0, 0]]
    (rows,) = step.sum([tf.pad(row[None], place)], "batchnorm")
    channels = variance.shape[0]
    return tf.split(rows, [1, channels, channels], axis=1)  # type: ignore[no-any-return]


# -- tf_keras ----------------------------------------------------------------------------------------------------------
def _tf_keras_patches(layer: Layer) -> list[Patch]:
    """Patch `_moments`, and apply the fused kernel's correction of the moving variance, as the kernel is not used."""
    bessel: list[Tensor] = []  # N / (N - 1), of the call that is being traced

    def of_step(original: Any, inputs: Tensor, reduction_axes: list[int], keep_dims: bool, mask: Any = None) -> Any:
        step = steps.current()
        if step is None or keep_dims:
            return original(inputs, reduction_axes, keep_dims, mask=mask)
        if getattr(layer, "_fdt_fused", False):
            mask = None  # the fused operation ignores it
            total = _total(step, _count(inputs, reduction_axes, _valid(inputs, mask)))
            bessel[:] = [total / tf.maximum(total - 1, 1)]
        return moments(step, inputs, reduction_axes, mask)

    def assign(original: Any, variable: Any, value: Tensor, momentum: Any, inputs_size: Any) -> Any:
        if bessel and variable is layer.moving_variance:
            value = value * tf.cast(bessel.pop(), value.dtype)
        return original(variable, value, momentum, inputs_size)

    return [Patch(layer, "_moments", of_step), Patch(layer, "_assign_moving_average", assign)]


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
