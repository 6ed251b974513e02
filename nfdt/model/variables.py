"""Access to the variables and the optimizer of a captured model, for Keras 3 and tf_keras.

`off` switches the captured optimizer's momentum off for one update, where the algorithm's momentum replaces it.
`AlgorithmUpdate.momentum` is then "algorithm". The algorithm's direction is u = mu v + g: mu is SGD's momentum or
Adam's beta_1, g the fresh gradient.

    SGD, nesterov or not            w <- w - eta u
    Adam, AdamW, Adamax, Nadam,     the first moment becomes (1 - beta_1) u, the value of beta_1 m + (1 - beta_1) g
    Lamb                            for m = (1 - beta_1) v; the second moment takes the squares of g
    without momentum (mu = 0)       its own update, of u

All other parts of the update (bias correction, weight decay, averages, loss scaling) stay those of the optimizer. Its
clipping applies to the gradient, before the algorithm receives it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fdt.errors import UserError
from fdt.keras import attribute
from fdt.keras.variables import inner_optimizer, is_loss_scaled, tensor_variable
from fdt.typing import Tensor, Variable

CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
FIRST_MOMENTS = {
    "Adam": "_momentums",
    "AdamW": "_momentums",
    "Nadam": "_momentums",
    "Lamb": "_momentums",
    "Adamax": "_m",
}


@tf.autograph.experimental.do_not_convert  # converted, `float` returns a tensor
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


def takes_rows_alone(optimizer: Any, flavor: str) -> bool:
    """Return whether the update by an embedding's IndexedSlices differs from that by their sum, a dense gradient.

    Args:
        optimizer: The captured optimizer.
        flavor: "keras", whose optimizers square the rows of a repeated index one by one, or "tf_keras", which adds
            them. Some of its legacy optimizers leave the rows, and their slots, that no index names as they are.
    """
    inner = inner_optimizer(optimizer)
    if hasattr(inner, "update_step"):
        return clips(optimizer) or (flavor == "keras" and _kind(inner) not in ("SGD", "Lion"))
    alike = {"Adam", "Adagrad"} if momentum_of(inner) else {"Adagrad", "RMSprop", "SGD"}
    return clips(optimizer) or type(inner).__name__ not in alike


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
            f"an algorithm with momentum of its own needs an optimizer whose momentum can be turned off: {reason}"
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


def clips(optimizer: Any) -> bool:
    """Return whether the optimizer clips gradients."""
    return any(getattr(inner_optimizer(optimizer), name, None) for name in CLIPS)


def clipped(optimizer: Any, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return `gradients`, clipped as the optimizer clips them."""
    found = list(gradients)
    return list(inner_optimizer(optimizer)._clip_gradients(found)) if clips(optimizer) else found


def _set_first_moments(
    optimizer: Any, slots: Any, variables: Sequence[Any], direction: Sequence[Tensor], fresh: Sequence[Tensor]
) -> None:
    beta = momentum_of(optimizer)
    index_of = getattr(optimizer, "_get_variable_index", None)  # Keras 3, also for variables of TensorFlow's
    for variable, u, g in zip(variables, direction, fresh, strict=True):
        index = index_of(variable) if index_of else optimizer._index_dict[optimizer._var_key(variable)]
        slots[index].assign((1.0 - beta) / beta * (u - g))


def _reason(optimizer: Any) -> str:
    """Return why the optimizer's momentum cannot be switched off, or "" if it can."""
    inner = inner_optimizer(optimizer)
    kind = _kind(inner)
    if inner is not optimizer:
        return f"gradients that overflow would stay in the algorithm's momentum. Received: {type(optimizer).__name__}"
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


def current_rate(optimizer: Any) -> Any:
    """Return the current learning rate as a 0-d float32 tensor. A schedule is evaluated at `iterations`."""
    rate = optimizer.learning_rate
    held = getattr(inner_optimizer(optimizer), "_learning_rate", rate)
    if is_schedule(held):  # tf_keras's `learning_rate` is then a variable, which its own update alone writes
        rate = held(count_of(optimizer))
    elif callable(rate) and not hasattr(rate, "shape"):
        rate = rate(optimizer.iterations)
    return tf.cast(tf.convert_to_tensor(rate), tf.float32)


def count_of(optimizer: Any) -> tf.Variable:
    """Return the variable that counts the optimizer's steps."""
    inner = inner_optimizer(optimizer)
    held = getattr(inner, "_iterations", None)  # with gradient accumulation, `iterations` is no variable
    return tensor_variable(inner.iterations if held is None else held)


def loss_scale(optimizer: Any) -> Any | None:
    """Return the factor on the loss by which the optimizer divides the gradients, or None without loss scaling."""
    if is_loss_scaled(optimizer):
        dynamic = getattr(optimizer, "dynamic_scale", None)
        return tf.convert_to_tensor(optimizer.loss_scale if dynamic is None else dynamic)
    return getattr(optimizer, "loss_scale_factor", None)


def unscaled(optimizer: Any, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of the loss, from those of the scaled loss."""
    scale = loss_scale(optimizer)
    return list(gradients) if scale is None else [g / tf.cast(scale, g.dtype) for g in gradients]


def scaled(optimizer: Any, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of the scaled loss, by whose scale the optimizer divides in its update."""
    scale = loss_scale(optimizer)
    return list(gradients) if scale is None else [g * tf.cast(scale, g.dtype) for g in gradients]


@contextmanager
def scaled_rate(optimizer: Any, scale: Any) -> Iterator[None]:
    """Scale the optimizer's learning rate, and so its weight decay, by `scale` inside the context. None: no change."""
    inner = inner_optimizer(optimizer)
    if scale is None:
        yield
    else:
        with _replaced(inner, _rate(inner, lambda rate: rate * scale)):
            yield


def is_schedule(rate: Any) -> bool:
    """Return whether a learning rate is a LearningRateSchedule of Keras or tf_keras, which is called with the step."""
    return any(kind.__name__ == "LearningRateSchedule" for kind in type(rate).__mro__)


@contextmanager
def schedule_at(optimizer: Any, count: Any) -> Iterator[None]:
    """Evaluate the learning-rate schedule at step `count` inside the context, instead of the optimizer's own step."""
    inner = inner_optimizer(optimizer)
    schedule: Any = getattr(inner, "_learning_rate", None)
    if is_schedule(schedule):
        with _replaced(inner, _rate(inner, lambda _: schedule(count))):
            yield
    else:
        yield


@contextmanager
def _replaced(inner: Any, changed: dict[str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in changed.items():
            stack.enter_context(attribute(inner, name, value))
        yield


def _rate(inner: Any, change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the attributes that replace the learning rate by `change` of it."""
    original = getattr(inner, "_get_current_learning_rate", None)
    if original is not None:  # Keras 3
        return {"_get_current_learning_rate": lambda: change(tf.cast(original(), tf.float32))}
    if "_learning_rate" in vars(inner):  # tf_keras; its jit-compiled function would keep the first scale
        return {"_learning_rate": change(current_rate(inner)), "jit_compile": False}
    raise UserError(
        f"an algorithm that sets the learning rate needs a Keras optimizer. Received: {type(inner).__name__}"
    )


@dataclass
class OwnedVariables:
    """The variables that one server owns: all of them, or those of a shard (nfdt/model/shards.py).

    Attributes:
        optimizer: The captured optimizer.
        trainable: Trainable variables.
        others: Non-trainable variables whose changes are pushed (no seed generators).
        scalars: The optimizer's 0-d variables.
    """

    optimizer: Any
    trainable: Sequence[Variable]
    others: Sequence[Variable] = ()
    scalars: Sequence[Variable] = ()

    def apply(
        self, gradients: Sequence[Any], positions: Sequence[int], rate: Any = None, fresh: Sequence[Any] | None = None
    ) -> None:
        """Update `trainable[positions]` with the captured optimizer.

        Args:
            gradients: One tensor per position, in the variable's shape.
            positions: Positions in `trainable`.
            rate: Factor on the learning rate. None: 1.
            fresh: If given, `gradients` contain the algorithm's momentum, and the optimizer's is off.
        """
        if not positions:  # a push without gradients for this server's variables: a step all the same
            self.count(1)
            return
        variables = [self.trainable[i] for i in positions]
        if fresh is not None:
            with off(self.optimizer, variables, gradients, fresh) as given:
                self.apply(given, positions, rate)
            return
        gradients = scaled(self.optimizer, gradients)  # the optimizer divides by the scale and tests for overflow
        with scaled_rate(self.optimizer, rate):
            if isinstance(variables[0], tf.Variable):  # tf_keras
                self.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
            else:
                self.optimizer.apply(gradients, variables)

    def take_off(self, amounts: Sequence[Any], positions: Sequence[int], steps: int) -> None:
        """Subtract `amounts` from `trainable[positions]`, and count `steps`."""
        for position, amount in zip(positions, amounts, strict=True):
            variable = self.trainable[position]
            variable.assign_sub(tf.cast(amount, tensor_variable(variable).dtype))
            constraint = getattr(variable, "constraint", None)
            if constraint is not None:
                variable.assign(constraint(variable))
        self.count(steps)

    def count(self, steps: int) -> None:
        """Add `steps` to the optimizer's count."""
        count = count_of(self.optimizer)
        count.assign_add(tf.cast(steps, count.dtype))
