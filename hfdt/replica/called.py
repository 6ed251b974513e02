"""A tf.function that an eager step calls for a part of its work: is what it returns a sum over the rows, or a mean?

Operations within are not seen one by one (kinds.py); it is tried on halves of its rows, as a step function is.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import function_takes, where
from fdt.errors import CaptureError
from hfdt import step as steps
from hfdt.replica import batches, kinds
from hfdt.replica.algebra import Kind
from hfdt.replica.probe import Trials
from hfdt.step import Reading

MIXTURE = (
    "a tf.function that takes gradients for an eager loop must return means beside them, or sums over the batch's "
    "samples, for ranks to read the gradients alike. Received: both, from the one called at {where}; return the others "
    "from a function of their own, or counts as integers"
)


def call(trials: Trials, function: Any, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
    """`run()`, which calls `function`; the tensors that it returns are marked."""
    rows = kinds.rows_among((args, kwargs))
    output = run()
    if rows is None:
        return output
    leaves = [leaf for leaf in tf.nest.flatten(output) if isinstance(leaf, tf.Tensor)]
    scalars = [leaf for leaf in leaves if batches.is_scalar(leaf)]
    kinds.enter_as([leaf for leaf in leaves if leaf.shape.rank], rows, Kind.ROWS)
    if scalars:
        with steps.entered(None), kinds.unfollowed():
            found = trials.found(function, args, kwargs, max(rows.share[0], 1)).outputs
        for scalar, reading in zip(scalars, [*found, *[None] * len(scalars)], strict=False):
            kinds.enter_as([scalar], rows, Kind.SUM if reading is Reading.STEP_SUM else Kind.MEAN)
        step: Any = steps.current()
        if step is not None and function_takes(function):
            step.reading = _of_gradients(found, step.default)
    return output


def _of_gradients(found: Sequence[Reading | None], default: Reading) -> Reading:
    """How gradients are read that are returned beside numbers of which one is their loss."""
    known = {reading for reading in found if reading is not None}
    if len(known) > 1:
        raise CaptureError(MIXTURE.format(where=where()))
    return known.pop() if known else default
