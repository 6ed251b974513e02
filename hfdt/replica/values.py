"""What a script reads of its training: the same on every rank, and what the whole batch gives.

- A scalar that a step function returns is averaged over ranks by share; rows of a batch are put end to end.
- The loss of an eager step is made global when its gradient is taken, in the tensor that the script holds.
- A number that the script reads out of a tensor (print, float, if) is agreed on: where all ranks have the same it
  stays, else it is averaged; a truth is rank 0's.
"""

import ctypes
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import where
from fdt.errors import CaptureError
from hfdt import step as steps
from hfdt.replica import clipping, kinds
from hfdt.replica.algebra import Kind
from hfdt.replica.batches import is_scalar
from hfdt.replica.places import Places, ReplicaStep
from hfdt.replica.probe import Found
from hfdt.step import Reading, Step, Tensor

Number = Any
READ = "_fdt_read"  # how a loss that is global now was read
BOTH = (
    "an eager loss must be a mean or a sum over the batch's samples. Received: one plus the other, differentiated at "
    "{where}; take both means (or sums) over the same rows"
)
BENT = (
    "an eager loss must be a mean or a sum over the batch's samples, or one over a mask. Received: another function of "
    "the batch (a root of a mean, a ratio of predictions, rows compared with each other), differentiated at {where}; "
    "--capture extract trains here, alone"
)

UNFOLLOWED = (
    "the loss of an eager step must be computed from the batch that its tape reads. Received: a loss that none of the "
    "divided arrays went into, differentiated at {where}; --allow-replicated has every rank do all of that work"
)


def whole_output(output: Any, step: ReplicaStep, mine: int, total: int, found: Found) -> Any:
    """What a step function returned from its part, as the whole batch would have it; `found`: of its scalars."""
    leaves = tf.nest.flatten(output)
    scalars = [i for i, leaf in enumerate(leaves) if is_scalar(leaf)]
    rows = [i for i, leaf in enumerate(leaves) if _has_rows(leaf, max(mine, 1))]
    if not scalars and not rows:
        return output
    readings = [*found.outputs, *[Reading.MEAN] * len(scalars)]
    sums = [reading is Reading.STEP_SUM for reading in readings]
    sent = [
        step.weigh(leaves[i], tf.cast(step.mine > 0, leaves[i].dtype) if is_sum else step.share(leaves[i].dtype))
        for i, is_sum in zip(scalars, sums, strict=False)
    ]
    sent += [placed(leaves[i], step, mine, total) for i in rows]
    for i, value in zip([*scalars, *rows], step.sum(sent, "returned"), strict=True):
        leaves[i] = value
    for place, i in enumerate(scalars):
        if readings[place] is None:  # not known yet: what the trial of the whole batch gave
            leaves[i] = tf.constant(found.values[place], leaves[i].dtype)
    return tf.nest.pack_sequence_as(output, leaves)


def take_gradient(original: Any, tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of GradientTape.gradient: notes how the target is read, and makes a scalar loss global."""
    with kinds.unfollowed():
        gradient = original(tape, target, *args, **kwargs)
    step = steps.current()
    if tf.executing_eagerly():
        kinds.keep_whole(gradient)
    if not isinstance(step, ReplicaStep) or not tf.is_tensor(target):
        return gradient
    clipping.note(gradient)
    step.reading = Reading.STEP_SUM if target.shape.rank else step.default
    step.over = None
    if tf.executing_eagerly() and is_scalar(target):
        with steps.entered(None), kinds.unfollowed():
            _read_loss(target, step)
    return gradient


def _read_loss(loss: Any, step: ReplicaStep) -> None:
    """A second gradient of the same loss (a persistent tape) is read as the first was, before the loss was global."""
    if not hasattr(loss, READ):
        _make_global(loss, step)
        setattr(loss, READ, (step.reading, step.over))
    step.reading, step.over = getattr(loss, READ)


def _make_global(loss: Any, step: ReplicaStep) -> None:
    """Find out how an eager loss is to be read, and give it the value that the whole batch has."""
    mark = kinds.mark_of(loss)
    if mark is None and step.by_hand:
        raise CaptureError(UNFOLLOWED.format(where=where()))
    if mark is not None and mark.kind is Kind.BOTH:
        raise CaptureError(BOTH.format(where=where()))
    if mark is not None and mark.kind is Kind.BENT:
        raise CaptureError(BENT.format(where=where()))
    mine, share = tf.cast(step.mine > 0, tf.float64), step.share(tf.float64)
    over = mine * (mark.over if mark is not None and mark.over is not None else 0.0)
    is_sum = mark is not None and mark.kind is Kind.SUM
    wide = tf.cast(loss, tf.float64)
    parts = [*(step.weigh(wide, w) for w in (mine, share, over)), tf.cast(is_sum, tf.float64), over]
    added, averaged, masked, sums, whole = tf.unstack(step.sum([tf.stack(parts)], "loss")[0])
    value = averaged
    if sums > 0:
        step.reading, value = Reading.STEP_SUM, added
    elif whole > 0:
        step.over, value = over / whole, masked / whole
    _overwrite(loss, tf.cast(value, loss.dtype))
    kinds.forget(loss)


def average_loss(original: Any, per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None) -> Any:
    """A sum over samples divided by a number for the whole batch: this rank's addend."""
    loss = original(per_example_loss, sample_weight, global_batch_size)
    step = steps.current()
    return loss if step is None or global_batch_size is None else step.over_share(loss)


class Reads:
    """What the script gets of a number that it reads."""

    def __init__(self, places: Places, comm: Any) -> None:
        self._places, self._comm = places, comm

    def agreed(self, tensor: Any) -> Any:
        """`tensor`, a number, with a value that all ranks have."""
        divided, mark = self._places.divided(), kinds.mark_of(tensor)
        with steps.entered(None):
            share = mark.share if mark else self._places.share_now() if divided else (1, self._comm.size)
            adds = mark is not None and mark.kind is Kind.SUM and not tensor.dtype.is_bool
            place = tf.one_hot(self._comm.rank, self._comm.size, dtype=tf.float64)
            over = mark.over if mark and mark.over else 0.0
            told = tf.constant([share[0] / share[1], adds, over], tf.float64)
            mine = tf.stack([tf.cast(tensor, tf.float64), *told])
            table = tf.where(place[None, :] > 0, mine[:, None], 0.0)  # also of a NaN
            values, shares, sums, masked = self._comm.sum([table], "hfdt.read")[0].numpy()
            if np.any(sums):
                return tf.cast(tf.constant(np.sum(values[shares > 0])), tensor.dtype)
            if np.any(masked):
                values, shares = values[masked > 0], masked[masked > 0] / np.sum(masked)
                return tf.cast(tf.constant(np.sum(values * shares)), tensor.dtype)
            if np.all(values == values[0]) or np.all(np.isnan(values)):
                return tensor
            number = agree(values, shares, tensor.dtype, divided=divided and mark is None)
            return tf.cast(tf.constant(number, tf.float64), tensor.dtype)


def agree(values: Any, shares: Any, dtype: Any, *, divided: bool) -> Number:
    """One number of the ranks' `values`, which differ, each of its share of the batch."""
    if dtype.is_bool:
        return values[0]
    if dtype.is_integer:
        return values.sum() if divided else values[0]  # a count of a part
    return float(np.sum(values * shares))


def _has_rows(leaf: Any, rows: int) -> bool:
    dense = isinstance(leaf, tf.Tensor) and not isinstance(leaf, tf.Variable)
    return dense and bool(leaf.shape.rank) and leaf.shape[0] == rows and leaf.dtype.is_floating


def placed(leaf: Tensor, step: Step, mine: int, total: int) -> Tensor:
    """A rank's rows at their place among zeros."""
    rank, size = step.comm.rank, step.comm.size
    low, high = total * rank // size, total * (rank + 1) // size
    return tf.pad(leaf[:mine], [[low, total - high], *[[0, 0]] * (leaf.shape.rank - 1)])


def _overwrite(tensor: Any, value: Any) -> None:
    """Put `value` into the memory of an eager scalar: the script may have added it up already, or will."""
    source = np.ascontiguousarray(value.numpy())
    held = np.frombuffer(memoryview(tensor), source.dtype)
    ctypes.memmove(held.__array_interface__["data"][0], source.ctypes.data, source.nbytes)
