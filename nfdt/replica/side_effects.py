"""Side effects of traced step functions: what a worker repeats for a call that it skips, and what cannot be repeated.

Iterators advance, and constants are added, in every worker. A variable that the function computes from its own value
advances in a worker's own calls only, so the script is refused. It is not refused for variables that workers exchange
or combine: those of optimizers, metrics and layers. But an assignment behind a variable's update, such as a clip of the
weights, would follow rank 0's own updates only, and is refused too.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from client_shim.replica.steps import of_script, where
from fdt.errors import CaptureError
from replica.graph.flatten import WRITES, function_graph, functions_of
from replica.graph.operations import where_defined

_DRAWS = ("IteratorGetNext", "IteratorGetNextSync")
_ADDS = {"AssignAddVariableOp": tf.raw_ops.AssignAddVariableOp, "AssignSubVariableOp": tf.raw_ops.AssignSubVariableOp}
_SUMS = {
    "AddV2": tf.raw_ops.AssignAddVariableOp,
    "Add": tf.raw_ops.AssignAddVariableOp,
    "Sub": tf.raw_ops.AssignSubVariableOp,
}
_ASSIGN = "AssignVariableOp"
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
NESTED = (
    "the step function at {where} reads its batch inside a loop or a branch, so workers cannot take steps in turn. "
    "Give it the batch as an argument"
)
CHANGED = (
    "workers call a training function in turn, so the variable that changes at {where} would miss the changes by other "
    "workers' calls. Use hfdt run, or change the variable in the loop, after the call, from values that the call does "
    "not compute (to add up gradients, let one function add and another one apply them)"
)
ASSIGNED = (
    "workers call a training function in turn, and rank 0 applies all updates, so the assignment at {where}, after the "
    "update of its variable, would miss the updates of other workers. Use hfdt run, or give the variable a constraint "
    "(`constraint=`), which acts with each update"
)
EAGER = (
    "tf.config.run_functions_eagerly is on, so the step function at {where} has no graph. Remove it, or use hfdt run"
)

_EXCHANGE = os.path.join("nfdt", "replica", "exchange.py")
# Files and functions whose variables workers exchange or combine; parts of their paths.
_HANDLED = (
    (os.path.join("client_shim", "replica", "metric_state.py"), ""),
    (_EXCHANGE, ""),
    (os.path.join("nfdt", "replica", "rank.py"), "exchanged"),
    (os.path.join("keras", "src", "layers", "layer.py"), "__call__"),
    (os.path.join("tf_keras", "src", "engine", "base_layer.py"), "__call__"),
)
_ASSIGNING = tuple(os.path.join("", *parts, "") for parts in (("tensorflow", "python"), ("keras", "src", "backend")))


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
    """Adds to a variable of the script the constant that the function adds."""

    def __init__(self, variable: Any, amount: "_Amount") -> None:
        self._variable, self._amount = variable, amount

    def move(self, by: int) -> None:
        """Add the amount of `by` calls."""
        value = tf.constant(self._amount.value, self._amount.dtype)
        for _ in range(by):
            self._amount.add(resource=self._variable, value=value)


class LostEffect:
    """A change that cannot be repeated without the call. `reason`: CHANGED or ASSIGNED."""

    def __init__(self, operation: Any, reason: str = CHANGED) -> None:
        self._where, self._reason = where_defined(operation), reason

    def move(self, by: int) -> None:
        """Refuse the script: the call was skipped."""
        raise CaptureError(self._reason.format(where=self._where))


class Handled(NamedTuple):
    """Variables whose changes in a function workers handle.

    Attributes:
        repeated: Those whose changes need no repetition.
        exchanged: Those that workers exchange, which have no LostEffect; None: the function has none at all.
        updates: The count of each optimizer that the function uses, and the variables that it updates with the count.
    """

    repeated: Sequence[tf.Variable]
    exchanged: Sequence[tf.Variable] | None
    updates: Sequence[tuple[tf.Variable, Sequence[tf.Variable]]]


def effects(function: Any, handled: Callable[[], Handled]) -> list[tuple[Any, int]]:
    """Return the side effects of one call of `function`, which is traced.

    Args:
        function: A tf.function.
        handled: Returns the variables that workers handle. It is called once for each trace.
    """
    known: dict[int, list[tuple[Any, int]]] = vars(function).setdefault("_fdt_effects", {})
    traces = function.experimental_get_tracing_count()
    if traces not in known:
        known[traces] = list(_effects(function, handled()))
    return known[traces]


def _handles(variables: Sequence[tf.Variable]) -> set[int]:
    return {id(variable.handle) for variable in variables}


def _effects(function: Any, handled: Handled) -> Iterator[tuple[Any, int]]:
    graphs = [concrete.graph for concrete in function._list_all_concrete_functions()]
    if not graphs:
        raise CaptureError(EAGER.format(where=where()))
    graph = graphs[0]
    nested = (node for inner in graph._functions.values() for node in inner.definition.node_def)
    if _has_resources(graph) and any(node.op in _DRAWS for node in nested):
        raise CaptureError(NESTED.format(where=where()))
    for each in graphs:
        yield from ((LostEffect(op, ASSIGNED), 1) for op in _behind_updates(each, handled.updates))
    but = _handles(handled.repeated)
    owned = None if handled.exchanged is None else _handles(handled.exchanged)
    changes = [found for found in _changes(graph) if found[2] is not None and id(found[2]) not in but]
    amounts = [_amount(level, op) for level, op, _ in changes]
    pairs = list(zip(changes, amounts, strict=True))
    otherwise = {id(outer) for (_, op, outer), amount in pairs if amount is None}  # changed by more than constants
    for (level, operation, outer), amount in pairs:
        if operation.type in _DRAWS:
            yield IteratorEffect(operation, outer), 1
        elif owned is not None and id(outer) not in owned and _is_lost(level, operation, id(outer) in otherwise):
            yield LostEffect(operation), 1
        elif amount is not None:
            yield CounterEffect(outer, amount), 1


def _changes(graph: Any) -> Iterator[tuple["_Level", Any, Any]]:
    """Yield the operations of a function that draw elements or assign variables, each with its variable or iterator."""
    captured = {_key(inner): outer for outer, inner in graph.captures}
    return ((level, op, level.outer(op.inputs[0])) for level, op in _operations(_Level(graph, captured)))


def _behind_updates(graph: Any, updates: Sequence[tuple[tf.Variable, Sequence[tf.Variable]]]) -> Iterator[Any]:
    """Yield the script's assignments of variables that the same call has updated, but no additions of constants."""
    of_count: dict[int, set[int]] = {}
    for count, variables in updates:
        of_count.setdefault(id(count.handle), set()).update(_handles(variables))
    updated: set[int] = set()
    for level, op, outer in _changes(graph):
        if any(frame.filename.endswith(_EXCHANGE) for frame in op.traceback or ()):
            updated |= of_count.get(id(outer), set())
        elif id(outer) in updated and _is_scripts(op) and not _is_handled(op) and _amount(level, op) is None:
            yield op


def _has_resources(graph: Any) -> bool:
    """Return whether the graph captures a resource that may be an iterator."""
    handles = {id(variable.handle) for variable in (known() for known in graph._weak_variables) if variable is not None}
    return any(outer.dtype == tf.resource and id(outer) not in handles for outer, _ in graph.captures)


def _key(tensor: Any) -> tuple[str, int]:
    return tensor.op.name, tensor.value_index


@dataclass(frozen=True)
class _Level:
    """A graph: the function's own, or one that an operation of it calls.

    Attributes:
        graph: The graph.
        given: What its arguments stand for: the captured values, or tensors of the level around it.
        around: The level around it.
        always: Whether each call of the function runs it exactly once.
    """

    graph: Any
    given: Mapping[tuple[str, int], Any]
    around: "_Level | None" = None
    always: bool = True

    def outer(self, tensor: Any) -> Any:
        """Return the value around the function that an argument stands for; None if it is no argument."""
        found = self.given.get(_key(tensor))
        return found if found is None or self.around is None else self.around.outer(found)


def _operations(level: _Level) -> Iterator[tuple[_Level, Any]]:
    """Yield the operations that draw elements or assign variables, also in called functions; they have an input."""
    for operation in level.graph.get_operations():
        if operation.type in _DRAWS or operation.type.startswith(WRITES):
            yield level, operation
        resources = any(tensor.dtype == tf.resource for tensor in operation.inputs)
        names = functions_of(operation) if resources else ()
        for name in filter(level.graph._get_function, names):
            inner = function_graph(level.graph, name)
            first = len(operation.inputs) - len(inner.inputs)  # a branch does not receive the condition
            pairs = zip(inner.inputs, list(operation.inputs)[max(first, 0) :], strict=False)
            given = {_key(argument): tensor for argument, tensor in pairs}
            yield from _operations(_Level(inner, given, level, level.always and operation.type in _CALLS))


class _Amount(NamedTuple):
    """A constant that each call of the function adds to a variable or, by `add`, subtracts from it."""

    add: Any
    value: Any
    dtype: Any


def _amount(level: _Level, operation: Any) -> _Amount | None:
    """Return the constant that the operation adds in each call. Numbers but counts must be the script's own."""
    if not level.always or operation.type not in (*_ADDS, _ASSIGN):
        return None
    add, tensor = _ADDS.get(operation.type), operation.inputs[1]
    if operation.type == _ASSIGN:  # Keras's variables and `v.assign(v + 1)`
        total = _source(tensor)
        add, tensor = _SUMS.get(total.op.type), _added(level, total.op, level.outer(operation.inputs[0]))
        if tensor is None or not tensor.shape.is_compatible_with(total.shape):
            return None
    value, counts = tf.get_static_value(tensor), tensor.dtype.is_integer and tensor.shape.rank == 0
    if value is None or not (_is_scripts(operation) or (counts and operation.type != _ASSIGN)):
        return None
    return _Amount(add, value, tensor.dtype)


def _added(level: _Level, operation: Any, variable: Any) -> Any:
    """Return what a sum adds to the variable; None for other operations."""
    if operation.type not in _SUMS:
        return None
    first, second = map(_source, operation.inputs)
    if operation.type != "Sub" and first.op.type != "ReadVariableOp":
        first, second = second, first
    reads = first.op.type == "ReadVariableOp" and level.outer(first.op.inputs[0]) is variable
    return second if reads else None


def _source(tensor: Any) -> Any:
    """Return the tensor that identities pass on."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _is_lost(level: _Level, operation: Any, otherwise: bool) -> bool:
    """Return whether the script's own code changes the variable from its own value, outside of metrics and layers.

    `otherwise`: whether some operation changes it by more than a constant.
    """
    if _is_handled(operation) or not otherwise or not _is_scripts(operation):
        return False
    return operation.type != _ASSIGN or _is_read(level, operation)


def _is_handled(operation: Any) -> bool:
    """Return whether an exchange, a metric or a layer assigns a variable."""
    frames = operation.traceback or ()
    return any(f.filename.endswith(path) and name in ("", f.name) for f in frames for path, name in _HANDLED)


def _is_scripts(operation: Any) -> bool:
    """Return whether code of the script assigns a variable: below it are only TensorFlow's and Keras's assignments."""
    files = [frame.filename for frame in operation.traceback or ()]
    last = max((number for number, name in enumerate(files) if of_script(name)), default=-1)
    return last >= 0 and all(any(part in name for part in _ASSIGNING) for name in files[last + 1 :])


def _is_read(level: _Level, operation: Any) -> bool:
    """Return whether the value that the operation assigns depends on the variable itself."""
    variable = level.outer(operation.inputs[0])
    waiting, seen = [(level, operation.inputs[1])], set()
    while waiting:
        inner, tensor = waiting.pop()
        if tensor.dtype == tf.resource and inner.outer(tensor) is variable:
            return True
        if (id(inner.graph), tensor.op.name) in seen:
            continue
        seen.add((id(inner.graph), tensor.op.name))
        around = inner.given.get(_key(tensor)) if inner.around is not None else None
        if inner.around is not None and around is not None:
            waiting.append((inner.around, around))
        waiting.extend((inner, each) for each in tensor.op.inputs)
    return False
