"""Side effects of a tf.function: iterators and counters that must advance even where its call is skipped."""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import where
from fdt.errors import CaptureError

_DRAWS = ("IteratorGetNext", "IteratorGetNextSync")
_ADDS = {"AssignAddVariableOp": tf.raw_ops.AssignAddVariableOp, "AssignSubVariableOp": tf.raw_ops.AssignSubVariableOp}
NESTED = (
    "the step function at {where} reads its batch inside a loop or a branch, so workers cannot take steps in turn. "
    "Give it the batch as an argument"
)


class IteratorEffect:
    """Advances an iterator that the function captures."""

    def __init__(self, operation: Any, iterator: Any) -> None:
        self._iterator = iterator
        self._kinds = {name: operation.get_attr(name) for name in ("output_types", "output_shapes")}

    def move(self, by: int) -> None:
        """Draw and drop `by` elements."""
        for _ in range(by):
            tf.raw_ops.IteratorGetNext(iterator=self._iterator, **self._kinds)


class CounterEffect:
    """Adds to a variable of the script the whole number that the function adds."""

    def __init__(self, operation: Any, variable: Any) -> None:
        self._add, self._variable = _ADDS[operation.type], variable
        self._amount = tf.get_static_value(operation.inputs[1])
        self._dtype = operation.inputs[1].dtype

    def move(self, by: int) -> None:
        """Add the amount of `by` calls."""
        self._add(resource=self._variable, value=tf.constant(self._amount * by, self._dtype))


def effects(function: Any, but: Sequence[tf.Variable]) -> list[tuple[Any, int]]:
    """Return the side effects of one call of `function`, which is traced; without those on the variables `but`."""
    known: dict[int, list[tuple[Any, int]]] = vars(function).setdefault("_fdt_effects", {})
    traces = function.experimental_get_tracing_count()
    if traces not in known:
        known[traces] = list(_effects(function, but))
    return known[traces]


def _effects(function: Any, but: Sequence[tf.Variable]) -> Iterator[tuple[Any, int]]:
    graph = function._list_all_concrete_functions()[0].graph
    if _has_resources(graph) and any(node.op in _DRAWS for node in _nested(graph)):
        raise CaptureError(NESTED.format(where=where()))
    captured = {id(inner): outer for outer, inner in graph.captures}
    handles = {id(variable.handle) for variable in but}
    for operation in graph.get_operations():
        outer = captured.get(id(operation.inputs[0])) if operation.type in (*_DRAWS, *_ADDS) else None
        if outer is None or id(outer) in handles:
            continue
        if operation.type in _DRAWS:
            yield IteratorEffect(operation, outer), 1
        elif _is_count(operation.inputs[1]):
            yield CounterEffect(operation, outer), 1


def _has_resources(graph: Any) -> bool:
    """Return whether the graph captures a resource that may be an iterator."""
    handles = {id(variable.handle) for variable in (known() for known in graph._weak_variables) if variable is not None}
    return any(outer.dtype == tf.resource and id(outer) not in handles for outer, _ in graph.captures)


def _nested(graph: Any) -> Iterator[Any]:
    """Return the nodes of its loops and branches."""
    return (node for inner in graph._functions.values() for node in inner.definition.node_def)


def _is_count(value: Any) -> bool:
    return bool(value.dtype.is_integer and value.shape.rank == 0 and tf.get_static_value(value) is not None)
