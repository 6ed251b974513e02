"""A tf.function that an eager step calls for a part of its work: is what it returns a sum over the rows, or a mean?

Operations within are not seen one by one (kinds.py); it is tried on halves of its rows, as a step function is.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hfdt import step as steps
from hfdt.replica import batches, kinds
from hfdt.replica.algebra import Kind
from hfdt.replica.probe import Trials
from hfdt.step import Reading


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
        sums = [reading is Reading.STEP_SUM for reading in [*found, *[None] * len(scalars)]]
        for scalar, is_sum in zip(scalars, sums, strict=False):
            kinds.enter_as([scalar], rows, Kind.SUM if is_sum else Kind.MEAN)
        step: Any = steps.current()
        if any(sums) and step is not None:  # what it returns beside them may be gradients
            step.reading = Reading.STEP_SUM
    return output
