"""Side effects of a step that a worker skips: iterators, counters and random numbers advance alike on all workers.

A tf.function's iterators and counters advance even where its call is skipped. Every worker must draw equally many
random numbers from the script's generators.
"""

import contextlib
import pickle
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import where
from fdt.compat.tensorflow import context
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


class Draws:
    """State of the random generators that a step may use: NumPy's and Python's global ones, and those in `values`.

    `values` are the values that the step reads. TensorFlow's generators are a worker's own and not included.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        kinds = np.random.Generator, np.random.RandomState, random.Random
        self._generators = [value for value in values if isinstance(value, kinds)]
        self._before = self._states()

    def drawn(self) -> bool:
        """Return whether a number was drawn since this object was created."""
        return self._states() != self._before

    def _states(self) -> bytes:
        states = [np.random.get_state(), random.getstate(), *map(_state, self._generators)]
        return pickle.dumps(states)


def apart(seed: str, stack: contextlib.ExitStack) -> None:
    """Seed TensorFlow's eager operations by `seed` until `stack` closes.

    Later draws, such as the order of a shuffled dataset, stay equal on workers that did not execute this code.
    """
    known = context.context()
    if getattr(known, "_rng", None) is not None:  # the script has set a seed
        stack.callback(setattr, known, "_rng", known._rng)
        known._rng = random.Random(seed)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()
