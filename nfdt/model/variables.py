"""Access to the variables and the optimizer of a captured model, for Keras 3 and tf_keras."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fdt.errors import UserError
from fdt.keras.variables import inner_optimizer, is_loss_scaled, tensor_variable
from nfdt.model.momentum import off

Variable = Any  # Keras's or TensorFlow's


def is_summable(variable: Variable) -> bool:
    """Return whether changes of a non-trainable variable can be summed: numbers can, flags and strings cannot."""
    dtype = tf.as_dtype(tensor_variable(variable).dtype)
    return bool(dtype.is_floating or dtype.is_integer)


def is_scalar(variable: Variable) -> bool:
    """Return whether the variable is 0-d."""
    return bool(tensor_variable(variable).shape.rank == 0)


def current_rate(optimizer: Any) -> Any:
    """Return the current learning rate as a 0-d float32 tensor. A schedule is evaluated at `iterations`."""
    rate = optimizer.learning_rate
    if callable(rate) and not hasattr(rate, "shape"):
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


@contextmanager
def scaled_rate(optimizer: Any, scale: Any) -> Iterator[None]:
    """Scale the optimizer's learning rate, and so its weight decay, by `scale` inside the context. None: no change."""
    inner = inner_optimizer(optimizer)
    if scale is None:
        yield
    else:
        with _replaced(inner, _rate(inner, lambda rate: rate * scale)):
            yield


@contextmanager
def schedule_at(optimizer: Any, count: Any) -> Iterator[None]:
    """Evaluate the learning-rate schedule at step `count` inside the context, instead of the optimizer's own step."""
    inner = inner_optimizer(optimizer)
    schedule: Any = getattr(inner, "_learning_rate", None)
    if any(kind.__name__ == "LearningRateSchedule" for kind in type(schedule).__mro__):
        with _replaced(inner, _rate(inner, lambda _: schedule(count))):
            yield
    else:
        yield


@contextmanager
def _replaced(inner: Any, changed: dict[str, Any]) -> Iterator[None]:
    before = {name: vars(inner)[name] for name in changed if name in vars(inner)}
    vars(inner).update(changed)  # setattr would change what Keras tracks and saves
    try:
        yield
    finally:
        for name in changed:
            del vars(inner)[name]
        vars(inner).update(before)


def _rate(inner: Any, change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the attributes that replace the learning rate by `change` of it."""
    original = getattr(inner, "_get_current_learning_rate", None)
    if original is not None:  # Keras 3
        return {"_get_current_learning_rate": lambda: change(tf.cast(original(), tf.float32))}
    if "_learning_rate" in vars(inner):  # tf_keras; its jit-compiled function would keep the first scale
        return {"_learning_rate": change(current_rate(inner)), "jit_compile": False}
    raise UserError(f"a rule that sets the learning rate needs a Keras optimizer. Received: {type(inner).__name__}")


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
            fresh: If given, `gradients` contain the algorithm's momentum, and the optimizer's is off (momentum.py).
        """
        if not positions:
            return
        variables = [self.trainable[i] for i in positions]
        if fresh is not None:
            with off(self.optimizer, variables, gradients, fresh) as given:
                self.apply(given, positions, rate)
            return
        scale = loss_scale(self.optimizer)
        if scale is not None:  # the optimizer divides by it and tests for overflow
            gradients = [g * tf.cast(scale, g.dtype) for g in gradients]
        with scaled_rate(self.optimizer, rate):
            if isinstance(variables[0], tf.Variable):  # tf_keras
                self.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
            else:
                self.optimizer.apply(list(gradients), variables)

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
