"""The captured optimizer's own momentum, off for one update: the rule's takes its place (`Update.momentum` "rule").

The rule's direction is a sum, u = mu v + g: mu is SGD's momentum or Adam's beta_1, g the fresh gradient.

    SGD, nesterov or not            w <- w - eta u
    Adam, AdamW, Adamax, Nadam,     the first moment becomes (1 - beta_1) u, as beta_1 m + (1 - beta_1) g does when m
    Lamb                            was (1 - beta_1) v; the second moment takes the squares of g
    without momentum (mu = 0)       its own update, of u

Whatever else the optimizer does (bias correction, weight decay, averages, loss scaling) stays its own. What it clips is
the gradient, before the rule sees it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from fdt.errors import UserError
from fdt.keras.variables import inner_optimizer

Tensor = Any
CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
FIRST_MOMENTS = {
    "Adam": "_momentums",
    "AdamW": "_momentums",
    "Nadam": "_momentums",
    "Lamb": "_momentums",
    "Adamax": "_m",
}


def momentum_of(optimizer: Any) -> float:
    """SGD's momentum, Adam's beta_1, else 0."""
    inner = inner_optimizer(optimizer)
    with tf.init_scope():  # a legacy optimizer's are variables, which a graph that is being traced cannot read
        return float(getattr(inner, "momentum", None) or getattr(inner, "beta_1", None) or 0.0)


def can_be_off(optimizer: Any) -> bool:
    """Whether a rule's momentum can take the place of the optimizer's."""
    return not _reason(optimizer)


def is_sgd(optimizer: Any) -> bool:
    return _kind(inner_optimizer(optimizer)) == "SGD"


@contextmanager
def off(
    optimizer: Any, variables: Sequence[Any], direction: Sequence[Tensor], fresh: Sequence[Tensor]
) -> Iterator[list[Tensor]]:
    """What to give the optimizer as gradients, and the optimizer as it must be meanwhile.

    Raises UserError where the rule's momentum would have no meaning.
    """
    inner = inner_optimizer(optimizer)
    if reason := _reason(optimizer):
        raise UserError(f"a rule with momentum of its own needs an optimizer whose momentum can be off: {reason}")
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
    """`gradients` as the optimizer clips them, if it does."""
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
    """Why its momentum cannot be off; "" when it can."""
    inner = inner_optimizer(optimizer)
    kind = _kind(inner)
    if inner is not optimizer:
        return f"what overflows would stay in the rule's momentum. Received: {type(optimizer).__name__}"
    if not hasattr(inner, "update_step"):  # tf_keras's optimizers.legacy: its momentum is not where `off` looks
        return f"a legacy optimizer keeps its own. Received: {kind}"
    if getattr(inner, "gradient_accumulation_steps", None):
        return f"with gradient accumulation a push is not an update. Received: {kind}"
    if momentum_of(inner) and kind != "SGD" and kind not in FIRST_MOMENTS:
        return f"it must be SGD, {', '.join(sorted(FIRST_MOMENTS))} or one without momentum. Received: {kind}"
    return ""


def _kind(inner: Any) -> str:
    """The name of the class whose update it is; a script's own class, whatever it derives from, is not Keras's."""
    owner = next((kind for kind in type(inner).__mro__ if "update_step" in vars(kind)), type(inner))
    return owner.__name__ if owner.__module__.startswith(("keras.", "tf_keras.")) else f"the script's {owner.__name__}"
