"""Switches off the captured optimizer's momentum for one update, where the algorithm's momentum replaces it.

`Update.momentum` is then "rule". The algorithm's direction is u = mu v + g: mu is SGD's momentum or Adam's beta_1, g
the fresh gradient.

    SGD, nesterov or not            w <- w - eta u
    Adam, AdamW, Adamax, Nadam,     the first moment becomes (1 - beta_1) u, the value of beta_1 m + (1 - beta_1) g
    Lamb                            for m = (1 - beta_1) v; the second moment takes the squares of g
    without momentum (mu = 0)       its own update, of u

All other parts of the update (bias correction, weight decay, averages, loss scaling) stay those of the optimizer. Its
clipping applies to the gradient, before the algorithm receives it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from fdt.errors import UserError
from fdt.keras.variables import inner_optimizer
from fdt.typing import Tensor

CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
FIRST_MOMENTS = {
    "Adam": "_momentums",
    "AdamW": "_momentums",
    "Nadam": "_momentums",
    "Lamb": "_momentums",
    "Adamax": "_m",
}


def momentum_of(optimizer: Any) -> float:
    """Return SGD's momentum or Adam's beta_1, else 0."""
    inner = inner_optimizer(optimizer)
    with tf.init_scope():  # these are variables in a legacy optimizer, and a graph that is traced cannot read them
        return float(getattr(inner, "momentum", None) or getattr(inner, "beta_1", None) or 0.0)


def can_be_off(optimizer: Any) -> bool:
    """Return whether the momentum of an algorithm can replace the optimizer's."""
    return not _reason(optimizer)


def is_sgd(optimizer: Any) -> bool:
    """Return whether the optimizer, without its wrappers, is Keras's SGD."""
    return _kind(inner_optimizer(optimizer)) == "SGD"


@contextmanager
def off(
    optimizer: Any, variables: Sequence[Any], direction: Sequence[Tensor], fresh: Sequence[Tensor]
) -> Iterator[list[Tensor]]:
    """Switch the optimizer's momentum and clipping off inside the context.

    Args:
        optimizer: The captured optimizer.
        variables: Trainable variables to update.
        direction: The algorithm's direction u, one tensor per variable and in its shape.
        fresh: The gradient g in it, one tensor per variable.

    Yields:
        The tensors to pass to the optimizer as gradients.

    Raises:
        UserError: If the optimizer's momentum cannot be switched off.
    """
    inner = inner_optimizer(optimizer)
    if reason := _reason(optimizer):
        raise UserError(
            f"a rule with momentum of its own needs an optimizer whose momentum can be turned off: {reason}"
        )
    kind = _kind(inner)
    adaptive = momentum_of(inner) > 0 and kind in FIRST_MOMENTS
    if adaptive:
        _set_first_moments(inner, getattr(inner, FIRST_MOMENTS[kind]), variables, direction, fresh)
    switched = [name for name in (*CLIPS, *(() if adaptive else ("momentum",))) if getattr(inner, name, None)]
    before = {name: getattr(inner, name) for name in switched}
    for name in switched:
        setattr(inner, name, 0.0 if name == "momentum" else None)
    try:
        yield list(fresh if adaptive else direction)
    finally:
        for name, value in before.items():
            setattr(inner, name, value)


def clipped(optimizer: Any, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return `gradients`, clipped as the optimizer clips them."""
    inner = inner_optimizer(optimizer)
    return list(
        inner._clip_gradients(list(gradients)) if any(getattr(inner, name, None) for name in CLIPS) else gradients
    )


def _set_first_moments(
    optimizer: Any, slots: Any, variables: Sequence[Any], direction: Sequence[Tensor], fresh: Sequence[Tensor]
) -> None:
    beta = momentum_of(optimizer)
    for variable, u, g in zip(variables, direction, fresh, strict=True):
        if isinstance(variable, tf.Variable):  # tf_keras
            index = optimizer._index_dict[optimizer._var_key(variable)]
        else:
            index = optimizer._get_variable_index(variable)
        slots[index].assign((1.0 - beta) / beta * (u - g))


def _reason(optimizer: Any) -> str:
    """Return why the optimizer's momentum cannot be switched off, or "" if it can."""
    inner = inner_optimizer(optimizer)
    kind = _kind(inner)
    if inner is not optimizer:
        return f"gradients that overflow would stay in the rule's momentum. Received: {type(optimizer).__name__}"
    if not hasattr(inner, "update_step"):  # tf_keras's optimizers.legacy keep their momentum elsewhere
        return f"a legacy optimizer always uses its own. Received: {kind}"
    if getattr(inner, "gradient_accumulation_steps", None):
        return f"with gradient accumulation a push is not an update. Received: {kind}"
    if momentum_of(inner) and kind != "SGD" and kind not in FIRST_MOMENTS:
        return f"it must be SGD, {', '.join(sorted(FIRST_MOMENTS))} or one without momentum. Received: {kind}"
    return ""


def _kind(inner: Any) -> str:
    """Return the name of the class that defines the update; a script's own class never counts as Keras's."""
    owner = next((kind for kind in type(inner).__mro__ if "update_step" in vars(kind)), type(inner))
    return owner.__name__ if owner.__module__.startswith(("keras.", "tf_keras.")) else f"the script's {owner.__name__}"
