"""Optimizers of a session's graph: those of `tf.compat.v1`, recorded when they receive gradients.

Rank 0 is the parameter server, and its session runs the script's own update on the algorithm's output. So an optimizer
keeps its arithmetic, its slots and its learning rate. This module finds the properties that an algorithm needs.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from client_shim.replica.sessions.gradients import of_sessions
from client_shim.replica.sessions.plans import FetchPlan
from fdt.compat.sessions import adadelta, adagrad, gradient_descent, momentum, proximal_gradient_descent, rmsprop
from fdt.errors import CaptureError
from nfdt import algorithm_registry
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
    "a rule with momentum of its own can replace that of MomentumOptimizer and AdamOptimizer only, if they get all "
    f"gradients unchanged. Received: {{}}; use {PLAIN}, or {CAPTURED}"
)
NOT_SGD = "this rule needs SGD. Received: {}; use another rule"


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
            return not _is_zero(self.optimizer._momentum)
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
            given = frozenset(_name(g) for g, _ in pairs if g is not None)
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


def rule_for(
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
    return algorithm_registry.make(text or algorithm_registry.default(variables, can_be_off=free))


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


def _name(gradient: Any) -> str:
    return str(getattr(gradient, "values", gradient).name)


def _variables(optimizer: Any, graph: Any) -> list[Any]:
    with graph.as_default():
        return list(optimizer.variables())


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 0
