"""What NFDT asks of a captured model's variables and optimizer, in Keras 3 and tf_keras."""

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
    """Whether changes of a non-trainable variable can be added up: numbers can, flags and strings cannot."""
    dtype = tf.as_dtype(tensor_variable(variable).dtype)
    return bool(dtype.is_floating or dtype.is_integer)


def is_scalar(variable: Variable) -> bool:
    return bool(tensor_variable(variable).shape.rank == 0)


def current_rate(optimizer: Any) -> Any:
    """The learning rate now, a float32 tensor: the schedule's at `iterations` where there is one."""
    rate = optimizer.learning_rate
    if callable(rate) and not hasattr(rate, "shape"):
        rate = rate(optimizer.iterations)
    return tf.cast(tf.convert_to_tensor(rate), tf.float32)


def count_of(optimizer: Any) -> tf.Variable:
    """The variable that counts the optimizer's steps."""
    inner = inner_optimizer(optimizer)
    held = getattr(inner, "_iterations", None)  # `iterations` is no variable where gradients accumulate
    return tensor_variable(inner.iterations if held is None else held)


def loss_scale(optimizer: Any) -> Any | None:
    """What the loss was multiplied by, which the optimizer divides by again; None where there is no such thing."""
    if is_loss_scaled(optimizer):
        dynamic = getattr(optimizer, "dynamic_scale", None)
        return tf.convert_to_tensor(optimizer.loss_scale if dynamic is None else dynamic)
    return getattr(optimizer, "loss_scale_factor", None)


@contextmanager
def scaled_rate(optimizer: Any, scale: Any) -> Iterator[None]:
    """Inside, the optimizer's learning rate, and its weight decay with it, is `scale` times its own. None: its own."""
    inner = inner_optimizer(optimizer)
    if scale is None:
        yield
    else:
        with _replaced(inner, _rate(inner, lambda rate: rate * scale)):
            yield


@contextmanager
def schedule_at(optimizer: Any, count: Any) -> Iterator[None]:
    """Inside, a schedule of the learning rate is read at step `count`, not at the optimizer's own."""
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
    vars(inner).update(changed)  # not setattr: what is tracked and saved with the optimizer stays as it is
    try:
        yield
    finally:
        for name in changed:
            del vars(inner)[name]
        vars(inner).update(before)


def _rate(inner: Any, change: Callable[[Any], Any]) -> dict[str, Any]:
    """The attributes that make the learning rate `change` of what it is."""
    original = getattr(inner, "_get_current_learning_rate", None)
    if original is not None:  # Keras 3
        return {"_get_current_learning_rate": lambda: change(tf.cast(original(), tf.float32))}
    if "_learning_rate" in vars(inner):  # tf_keras; a function compiled by itself would keep the first scale
        return {"_learning_rate": change(current_rate(inner)), "jit_compile": False}
    raise UserError(f"a rule that sets the learning rate needs a Keras optimizer. Received: {type(inner).__name__}")


@dataclass
class OwnedVariables:
    """The variables that one server holds: all of them, or a shard's (nfdt/model/shards.py).

    others: non-trainable variables whose changes travel (not seed generators).  scalars: the optimizer's 0-d ones.
    """

    optimizer: Any
    trainable: Sequence[Variable]
    others: Sequence[Variable] = ()
    scalars: Sequence[Variable] = ()

    def apply(
        self, gradients: Sequence[Any], positions: Sequence[int], rate: Any = None, fresh: Sequence[Any] | None = None
    ) -> None:
        """The captured optimizer's own update of `trainable[positions]`.

        rate: what to scale the learning rate by.  fresh: given, `gradients` hold the rule's momentum and the
        optimizer's is off (momentum.py).
        """
        if not positions:
            return
        variables = [self.trainable[i] for i in positions]
        if fresh is not None:
            with off(self.optimizer, variables, gradients, fresh) as given:
                self.apply(given, positions, rate)
            return
        scale = loss_scale(self.optimizer)
        if scale is not None:  # the optimizer will divide by it, and test for overflow
            gradients = [g * tf.cast(scale, g.dtype) for g in gradients]
        with scaled_rate(self.optimizer, rate):
            if isinstance(variables[0], tf.Variable):  # tf_keras
                self.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
            else:
                self.optimizer.apply(list(gradients), variables)

    def take_off(self, amounts: Sequence[Any], positions: Sequence[int], steps: int) -> None:
        """Subtract `amounts` from `trainable[positions]`; the captured optimizer only counts `steps`."""
        for position, amount in zip(positions, amounts, strict=True):
            variable = self.trainable[position]
            variable.assign_sub(tf.cast(amount, tensor_variable(variable).dtype))
            constraint = getattr(variable, "constraint", None)
            if constraint is not None:
                variable.assign(constraint(variable))
        count = count_of(self.optimizer)
        count.assign_add(tf.cast(steps, count.dtype))
