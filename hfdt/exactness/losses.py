"""Loss denominators: corrections of each rank's loss, so that the weighted losses add up to the global batch's.

The exchange multiplies a rank by its share s (hfdt/worker/step_context.py), so a rank's loss l must satisfy sum_r s_r
l_r = global loss:

    a mean over samples         no correction: the local mean is right
    divided by a valid count    (a mask, or "mean_with_sample_weight"): the divisor is summed over ranks in the forward
                                pass, and l = (local sum / global divisor) / s
    reduction="sum"             l = local sum / s
    no reduction                Keras's own step differentiates the vector's sum: its gradient is divided by s

The correction applies to l and not to the gradient. So regularizers, `add_loss` and the rest of a custom train_step
keep plain weighting, and Keras's own loss tracker (weighted by samples) adds up to exactly the global loss.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from fdt import compat
from fdt.patches import Patch, patched
from fdt.typing import Tensor
from hfdt.worker import step_context as steps
from hfdt.worker.step_context import Reading, StepContext

_MEANS = ("mean", "sum_over_batch_size", "auto")


@contextlib.contextmanager
def installed(flavor: str) -> Iterator[None]:
    """Patch the loss functions of "keras" or "tf_keras" while the context lasts."""
    module = compat.of(flavor).losses
    if flavor == "keras":
        patches = [Patch(module, "apply_mask", _apply_mask), Patch(module, "reduce_values", _reduce_values)]
    else:
        patches = [
            Patch(module, "apply_valid_mask", _apply_valid_mask),
            Patch(module, "reduce_weighted_loss", _reduce_weighted_loss),
        ]
    with patched(patches):
        yield


# -- Keras 3 (keras/src/losses/loss.py) --------------------------------------------------------------------------------
def _apply_mask(original: Any, sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
    step = steps.current()
    if step is None or mask is None or reduction not in _MEANS:
        return original(sample_weight, mask, dtype, reduction)
    # With "sum" Keras multiplies by the mask alone; the factor of the valid count, over all ranks, is applied here.
    return original(sample_weight, mask, dtype, "sum") * _valid_weight(step, mask, dtype)


def _reduce_values(
    original: Any, values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size"
) -> Any:
    step = steps.current()
    if step is None or tuple(values.shape) == (0,):
        return original(values, sample_weight, reduction)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        divisor = step.sum([step.own(tf.reduce_sum(tf.cast(sample_weight, values.dtype)))], "loss")[0]
        return _told(step, step.over_share(tf.math.divide_no_nan(tf.reduce_sum(values), divisor)))
    return _reduced(step, values, reduction, lambda: original(values, sample_weight, reduction))


# -- tf_keras (tf_keras/src/utils/losses_utils.py) ---------------------------------------------------------------------
def _apply_valid_mask(original: Any, losses: Any, sw: Any, mask: Any, reduction: Any) -> Any:
    step = steps.current()
    if step is None or mask is None or reduction not in _MEANS:
        return original(losses, sw, mask, reduction)
    return original(losses, sw, mask, "sum") * _valid_weight(step, mask, losses.dtype)


def _reduce_weighted_loss(original: Any, weighted_losses: Any, reduction: Any = "sum_over_batch_size") -> Any:
    step = steps.current()
    if step is None:
        return original(weighted_losses, reduction)
    return _reduced(step, weighted_losses, reduction, lambda: original(weighted_losses, reduction))


# -- both --------------------------------------------------------------------------------------------------------------
def _reduced(step: StepContext, values: Tensor, reduction: Any, plain: Any) -> Tensor:
    if reduction in (None, "none"):
        return _gradient_over_share(step, values) if step.terms.own_step else values
    if values.shape.rank == 0:  # a custom loss function has reduced it already
        step.terms.note_scalar_loss()
        return _told(step, step.over_share(values) if step.terms.reading is Reading.LOSS_SUM else plain())
    return _told(step, step.over_share(tf.reduce_sum(values)) if reduction == "sum" else plain())


def _told(step: StepContext, loss: Tensor) -> Tensor:
    """Convert `loss`, which is right for weighting by share, to the weighting in force."""
    if step.terms.reading is not Reading.STEP_SUM:
        return loss
    return loss * step.share(loss.dtype)


def _valid_weight(step: StepContext, mask: Tensor, dtype: Any) -> Tensor:
    """Return total / valid, Keras's factor for a mask's valid entries, with `valid` counted over all ranks."""
    valid = step.sum([step.own(tf.reduce_sum(tf.cast(mask, dtype)))], "mask")[0]
    return step.over_share(tf.math.divide_no_nan(tf.cast(tf.size(mask), dtype), valid))


def _gradient_over_share(step: StepContext, values: Tensor) -> Tensor:
    """Return `values` unchanged, for the loss tracker, with a gradient that is divided by the share."""
    still = tf.stop_gradient(values)
    return still + step.over_share(values - still)
