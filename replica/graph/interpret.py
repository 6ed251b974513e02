"""The interpreter of functions that draw batches in a loop: it runs loops and branches, each iteration as a call.

A loop over a dataset inside a tf.function is one operation to TensorFlow. Run by the interpreter, its body is a
function that is called with an element, and is emitted like any other.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fdt.compat.tensorflow import constant_op, context, execute, tensor_util
from replica.graph.drawing import draws, in_new_loop
from replica.graph.flatten import (
    RANDOM,
    SOURCES,
    WRITES,
    Flat,
    GraphNode,
    Ref,
    eager_attrs,
    function_graph,
    functions_of,
)

_LOOPS, _BRANCHES = ("While", "StatelessWhile"), ("If", "StatelessIf", "Case", "StatelessCase")
_OUTSIDE = RANDOM | frozenset(SOURCES)


def draws_within(graph: Any) -> bool:
    """Return whether a loop or branch of a graph, at any depth, draws elements of a dataset or random numbers.

    A branch with a gradient also passes Optionals; where no iterator makes Optionals, all of them are of this kind.
    """
    outer, inner = _types_of(graph)
    passed = "OptionalFromValue" in outer | inner and "IteratorGetNextAsOptional" not in outer | inner
    return not inner.isdisjoint(_OUTSIDE - {"OptionalGetValue"} if passed else _OUTSIDE)


def _types_of(graph: Any, callers: frozenset[str] = frozenset()) -> tuple[set[str], set[str]]:
    """Return the types of a graph's operations: those outside and those inside loops and branches."""
    outer, inner = set(), set()
    for op in graph.get_operations():
        outer.add(op.type)
        for name in set(functions_of(op)) - callers:
            found = _types_of(function_graph(graph, name), callers | {name})
            if op.type in (*_LOOPS, *_BRANCHES):
                inner |= found[0] | found[1]
            else:
                outer |= found[0]
                inner |= found[1]
    return outer, inner


def interpret(flat: Flat, arguments: Sequence[Any], assigned: Callable[[Sequence[Any]], None]) -> list[Any]:
    """Run a function's operations one by one, and return its outputs.

    Args:
        flat: The function.
        arguments: Eager tensors, placed or not.
        assigned: Called with the variables that an operation is about to assign. Bodies of loops and branches are calls
            of functions, which are counted where they are called.
    """
    found: dict[Ref, Any] = {}
    for number, node in enumerate(flat.nodes):
        if node.argument is not None:
            outputs = [arguments[node.argument]]
        else:
            inputs = [found[ref] for ref in node.inputs]
            if node.op.type.startswith(WRITES):
                assigned(inputs[:1])
            outputs = _run(node, inputs)
        found.update({(number, index): output for index, output in enumerate(outputs)})
    return [found[ref] for ref in flat.outputs]


def _run(node: GraphNode, inputs: list[Any]) -> list[Any]:
    op = node.op
    if op.type in _LOOPS:
        return _loop(op, inputs)
    if op.type in _BRANCHES:
        chosen, *rest = inputs
        return _call(op, _branch(op, chosen), rest)
    if op.type in RANDOM:
        return draws(node, inputs)
    if op.type == "Const":
        return [constant_op.constant(tensor_util.MakeNdarray(op.get_attr("value")), op.outputs[0].dtype)]
    with tf.device(op.device or None):
        return list(execute.execute(op.type, len(op.outputs), inputs, eager_attrs(op), context.context()) or ())


def _loop(op: Any, state: list[Any]) -> list[Any]:
    with in_new_loop() if _over_dataset(op) else contextlib.nullcontext():
        while bool(_call(op, op.get_attr("cond"), state)[0]):
            state = _call(op, op.get_attr("body"), state)
        return state


def _over_dataset(op: Any) -> bool:
    body = function_graph(op.graph, op.get_attr("body").name)
    return any(each.type == "IteratorGetNextAsOptional" for each in body.get_operations())


def _branch(op: Any, chosen: Any) -> Any:
    """Return the function that a branch calls; an index without a branch selects the last one."""
    if op.type.endswith("If"):
        return op.get_attr("then_branch" if bool(chosen) else "else_branch")
    branches = op.get_attr("branches")
    return branches[int(chosen) if 0 <= int(chosen) < len(branches) else -1]


def _call(op: Any, called: Any, arguments: list[Any]) -> list[Any]:
    function = op.graph._get_function(called.name)
    return list(function.call_flat(*arguments) or ())
