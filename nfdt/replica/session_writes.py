"""Detection of the variables that a run without gradients writes: by initialisation, restoration or feeds."""

import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from client_shim.replica.sessions.plans import FetchPlan, ancestors, collected

_known: weakref.WeakKeyDictionary[FetchPlan, set[str]] = weakref.WeakKeyDictionary()


def anew(plan: FetchPlan, graph: Any) -> set[str]:
    """Return the names of variables that get an initial or a restored value: their training starts again."""
    if plan not in _known:
        initial = {variable.initializer for variable in collected(graph).values()}
        _known[plan] = {_written(o) for o in plan.moving() if o in initial or _is_restored(o)}
    return _known[plan]


def by_feeds(plan: FetchPlan, graph: Any, feeds: Iterable[Any]) -> set[str]:
    """Return the names of other variables whose change depends on the feeds."""
    fed = {key.op for key in feeds if isinstance(key, tf.Tensor)}
    changed = {_written(o) for o in plan.moving() if fed & ancestors([o])}
    return changed - anew(plan, graph) if changed else changed


def _is_restored(operation: Any) -> bool:
    return any(o.type.startswith("Restore") for o in ancestors([operation]))


def _written(operation: Any) -> str:
    return str(operation.inputs[0].op.name)
