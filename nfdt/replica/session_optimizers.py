"""Optimizers of a session's graph: those of `tf.compat.v1`, recorded when they receive gradients.

Rank 0 is the parameter server, and its session runs the script's own update on the algorithm's output. So an optimizer
keeps its arithmetic, its slots and its learning rate. This module finds the properties that an algorithm needs.

`Momentum` switches a TensorFlow 1 optimizer's momentum off for one update, as nfdt/model/variables.py does for Keras.

    Momentum    its accumulator is set to 0, and it receives u (with Nesterov's u / (1 + mu)): w <- w - eta u
    Adam        its first moment is set to (1 - beta1) / beta1 (u - g), and it receives g: the result is (1 - beta1) u

u = mu v + g is the algorithm's direction, g its fresh gradient. This works only if the optimizer receives the computed
gradients themselves: a direction that the script clips or scales loses its momentum.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.sessions.gradients import GradientNode, of_sessions
from client_shim.replica.sessions.plans import FetchPlan
from fdt.compat.tensorflow import (
    Optimizer,
    adadelta,
    adagrad,
    adam,
    gradient_descent,
    momentum,
    proximal_gradient_descent,
    rmsprop,
)
from fdt.errors import CaptureError
from fdt.typing import Array
from nfdt import algorithms
from nfdt.algorithm import AsyncAlgorithm
from nfdt.options import CAPTURED, PLAIN

_WITHOUT_MOMENTUM = (
    gradient_descent.GradientDescentOptimizer,
    adagrad.AdagradOptimizer,
    adadelta.AdadeltaOptimizer,
    proximal_gradient_descent.ProximalGradientDescentOptimizer,
)
_RATES = ("_learning_rate_tensor", "_lr_t")
OWN_MOMENTUM = (
    "an algorithm with its own momentum can replace the momentum of MomentumOptimizer and AdamOptimizer only, and only "
    f"if they get all gradients unchanged. Received: {{}}; use {PLAIN}, or {CAPTURED}"
)
NOT_SGD = "this algorithm needs SGD. Received: {}; use another one"


@dataclass(frozen=True, eq=False)
class Applied:
    """One call of `apply_gradients`.

    Attributes:
        optimizer: The optimizer.
        operation: Name of the update's operation.
        variables: Names of the variables' operations.
        gradients: Names of the gradient tensors; for an embedding, of their values.
        rate: Tensor of the learning rate; None for an optimizer without one.
    """

    optimizer: Any
    operation: str
    variables: frozenset[str]
    gradients: frozenset[str]
    rate: Any

    @property
    def name(self) -> str:
        """Class name of the optimizer."""
        return type(self.optimizer).__name__

    @property
    def has_momentum(self) -> bool:
        """Whether an update depends on earlier gradients, other than by their squares."""
        if isinstance(self.optimizer, rmsprop.RMSPropOptimizer):
            value = self.optimizer._momentum
            return not (isinstance(value, (int, float)) and value == 0)
        return type(self.optimizer) not in _WITHOUT_MOMENTUM

    @property
    def is_sgd(self) -> bool:
        """Whether an update is the learning rate times the gradient, or a momentum of it."""
        return type(self.optimizer) in (gradient_descent.GradientDescentOptimizer, momentum.MomentumOptimizer)


class Optimizers:
    """All updates in the script's graphs."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[Any, list[Applied]] = weakref.WeakKeyDictionary()

    def apply_gradients(self, original: Any, optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace Optimizer.apply_gradients, in any graph. The arguments have the names that scripts use."""
        pairs = list(grads_and_vars)
        graph = tf.compat.v1.get_default_graph()
        if not of_sessions(graph):
            optimizer._fdt_counted = args[0] if args else kwargs.get("global_step")
        made = original(optimizer, pairs, *args, **kwargs)
        if of_sessions(graph) and isinstance(made, tf.Operation):
            variables = frozenset(str(v.op.name) for g, v in pairs if g is not None)
            rate = next((t for t in (getattr(optimizer, name, None) for name in _RATES) if t is not None), None)
            given = frozenset(str(getattr(g, "values", g).name) for g, _ in pairs if g is not None)
            self._of.setdefault(graph, []).append(Applied(optimizer, str(made.name), variables, given, rate))
        return made

    def within(self, plan: FetchPlan, graph: Any) -> list[Applied]:
        """Return the updates that a run executes."""
        names = {o.name for o in plan.operations}
        return [each for each in self._of.get(graph, ()) if each.operation in names]

    def slots(self, graph: Any) -> set[str]:
        """Return the names of the operations that hold optimizers' variables."""
        own = {each.optimizer for each in self._of.get(graph, ())}
        return {str(v.op.name) for optimizer in own for v in _variables(optimizer, graph)}


def algorithm_for(
    text: str | None, applied: Sequence[Applied], variables: Sequence[Any], *, can_be_off: bool
) -> AsyncAlgorithm:
    """Return the algorithm for the gradients of `applied`.

    Args:
        text: The requested algorithm, or None.
        applied: The updates.
        variables: The trained variables.
        can_be_off: Whether the algorithm's momentum can replace the optimizer's.
    """
    free = can_be_off or not any(each.has_momentum for each in applied)
    return algorithms.make(text or algorithms.default(variables, can_be_off=free))


def check(rule: AsyncAlgorithm, applied: Sequence[Applied], *, momentum: bool, can_be_off: bool) -> None:
    """Check an algorithm against the optimizers of its updates.

    Args:
        rule: The algorithm.
        applied: The updates.
        momentum: Whether the algorithm's updates contain a momentum of its own.
        can_be_off: Whether it can replace the optimizer's.

    Raises:
        CaptureError: If the algorithm does not work with them.
    """
    held = [each.name for each in applied if each.has_momentum]
    if momentum and held and not can_be_off:
        raise CaptureError(OWN_MOMENTUM.format(held[0]))
    other = [each.name for each in applied if not each.is_sgd]
    if rule.needs_sgd and (other or not applied):
        raise CaptureError(NOT_SGD.format(other[0] if other else "an update by hand"))


def _variables(optimizer: Any, graph: Any) -> list[Any]:
    with graph.as_default():
        return list(optimizer.variables())


_MOMENTS = {momentum.MomentumOptimizer: ("_momentum", "momentum"), adam.AdamOptimizer: ("_beta1", "m")}


@dataclass(frozen=True)
class Momentum:
    """Momentum of the update that gets all gradients of one call. `mu`: MomentumOptimizer's momentum, Adam's beta1."""

    optimizer: Any
    mu: float
    slots: Sequence[Any]  # variables

    def off(self, direction: Sequence[Array], fresh: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Return the gradients for the optimizer, and the values that its slots need before the update."""
        if isinstance(self.optimizer, adam.AdamOptimizer):
            scale = (1.0 - self.mu) / self.mu
            return list(fresh), [scale * (u - g) for u, g in zip(direction, fresh, strict=True)]
        by = 1.0 + self.mu if self.optimizer._use_nesterov else 1.0
        return [u / by for u in direction], [np.zeros_like(u) for u in direction]


def momentum_of(taken: GradientNode, applied: Sequence[Applied], variables: Sequence[Any]) -> Momentum | None:
    """Return the momentum, or None if it cannot be off. `applied`: the updates of the node's variables."""
    kind = _MOMENTS.get(type(applied[0].optimizer)) if len(applied) == 1 else None
    if kind is None:
        return None
    (each,), (attribute, slot) = applied, kind
    mu = getattr(each.optimizer, attribute)
    direct = each.gradients <= {str(tensor.name) for tensor in taken.outputs}
    if not direct or not isinstance(mu, float) or not 0 < mu < 1 or each.variables != set(taken.variables):
        return None
    if any(taken.sparse) and slot == "momentum":  # rows that a batch lacks keep their accumulator
        return None
    return Momentum(each.optimizer, mu, [each.optimizer.get_slot(v, slot) for v in variables])


class CompatOptimizer:
    """View of a `tf.compat.v1` optimizer.

    `learning_rate` is the optimizer's; `iterations` is the global step that the script counts with it, if any.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        counted = getattr(optimizer, "_fdt_counted", None)  # session_optimizers.py
        with tf.init_scope():
            self.iterations = tf.Variable(0, dtype=tf.int64, trainable=False) if counted is None else counted

    @property
    def learning_rate(self) -> Any:
        rate = next(
            (getattr(self._optimizer, n) for n in ("_lr", "_learning_rate") if hasattr(self._optimizer, n)), 1.0
        )
        return rate() if callable(rate) else rate


def inspected(optimizer: Any) -> Any:
    """Return the optimizer with Keras's attributes: Keras's own unchanged, others wrapped."""
    if not isinstance(optimizer, Optimizer):
        return optimizer
    return type(type(optimizer).__name__, (CompatOptimizer,), {})(optimizer)  # error messages name the class
