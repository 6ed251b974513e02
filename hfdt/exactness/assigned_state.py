"""Assigned state: variables that the forward pass assigns and no gradient updates, as BatchNorm's moving statistics.

Each rank assigns them from its local batch. The assigned variables are recorded and averaged by weight together with
the gradients, in the same exchange.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import where
from fdt.keras.variables import ASSIGNING, tensor_variable
from fdt.patches import Patch, patched
from fdt.typing import Tensor, Variable
from hfdt.worker import step_context as steps
from hfdt.worker.step_context import StepContext

_EPSILON = {tf.float32: 2.0**-23, tf.float64: 2.0**-52}


def averaged(variables: Iterable[Any], but: Iterable[Any]) -> dict[int, Variable]:
    """Return the floating-point variables without those of `but`, by id, for `StepTerms.averaged`."""
    left_out = {id(tensor_variable(v)) for v in but}
    found = {id(tensor_variable(v)): tensor_variable(v) for v in variables}
    return {key: v for key, v in found.items() if key not in left_out and v.dtype.is_floating}


def weigh_touched(step: StepContext, variables: list[Variable]) -> list[Tensor]:
    """Return the variables' values, weighted by this rank's share of the global batch."""
    return [step.weigh(tf.convert_to_tensor(v), step.share(v.dtype)) for v in variables]


def flush(step: StepContext) -> None:
    """Average the assigned variables that no gradient exchange has averaged."""
    variables = step.take_touched()
    if variables:
        write(variables, step.sum(weigh_touched(step, variables), "forward"))


def write(variables: list[Variable], values: list[Tensor]) -> None:
    """Assign the averages `values`, without a record of these assignments.

    A whole number stays one: a weighted average of equal counts is rounded, and a script may compare it with a number.
    """
    with steps.entered(None):
        for variable, value in zip(variables, values, strict=True):
            if value.dtype in _EPSILON:
                whole = tf.round(value)
                close = tf.abs(value - whole) <= 4 * _EPSILON[value.dtype] * tf.abs(whole)
                value = tf.where(close, whole, value)
            variable.assign(value)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Record assignments while the context lasts."""
    with patched(Patch(owner, name, _noting) for owner, name in ASSIGNING):
        yield


def _noting(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    step = steps.current()
    if step is not None and id(self) in step.terms.averaged:
        step.touched.setdefault(id(self), self)
    if step is not None and step.deferred is not None and id(self) not in step.written:
        step.written[id(self)] = Path(where()).name
    return original(self, *args, **kwargs)
