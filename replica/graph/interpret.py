"""Functions that draw batches in a loop: their loops and branches are run from here, each iteration a function call.

A loop over a dataset inside a tf.function is one operation to TensorFlow. Run from outside, its body is a function
that is called with an element, and is emitted like any other.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import constant_op, tensor_util

from replica.graph.drawing import draws, in_new_loop
from replica.graph.flatten import RANDOM, SOURCES, Flat, Node, Ref, eager_attrs, functions_of

_LOOPS, _BRANCHES = ("While", "StatelessWhile"), ("If", "StatelessIf")
_OUTSIDE = RANDOM | frozenset(SOURCES)


def draws_within(graph: Any) -> bool:
    """Tell whether a loop or branch of a graph, however deep, draws elements of a dataset, or random numbers.

    A branch whose gradient is taken passes Optionals, too; where no iterator makes any, they are those.
    """
    outer, inner = _types_of(graph)
    passed = "OptionalFromValue" in outer | inner and "IteratorGetNextAsOptional" not in outer | inner
    return not inner.isdisjoint(_OUTSIDE - {"OptionalGetValue"} if passed else _OUTSIDE)


def _types_of(graph: Any) -> tuple[set[str], set[str]]:
    """Return the types of a graph's operations: those outside and those inside of loops and branches."""
    outer, inner = set(), set()
    for op in graph.get_operations():
        outer.add(op.type)
        for name in functions_of(op):
            found = _types_of(graph._get_function(name).graph)
            if op.type in (*_LOOPS, *_BRANCHES):
                inner |= found[0] | found[1]
            else:
                outer |= found[0]
                inner |= found[1]
    return outer, inner


def interpret(flat: Flat, arguments: Sequence[Any]) -> list[Any]:
    """Run a function's operations one by one, and return its outputs.

    Args:
        flat: The function.
        arguments: Eager tensors, placed or not.
    """
    found: dict[Ref, Any] = {}
    for number, node in enumerate(flat.nodes):
        if node.argument is not None:
            outputs = [arguments[node.argument]]
        else:
            outputs = _run(node, [found[ref] for ref in node.inputs])
        found.update({(number, index): output for index, output in enumerate(outputs)})
    return [found[ref] for ref in flat.outputs]


def _run(node: Node, inputs: list[Any]) -> list[Any]:
    op = node.op
    if op.type in _LOOPS:
        return _loop(op, inputs)
    if op.type in _BRANCHES:
        predicate, *rest = inputs
        return _call(op, "then_branch" if bool(predicate) else "else_branch", rest)
    if op.type in RANDOM:
        return draws(node, inputs)
    if op.type == "Const":
        return [constant_op.constant(tensor_util.MakeNdarray(op.get_attr("value")), op.outputs[0].dtype)]
    with tf.device(op.device or None):
        return list(execute.execute(op.type, len(op.outputs), inputs, eager_attrs(op), context.context()) or ())


def _loop(op: Any, state: list[Any]) -> list[Any]:
    with in_new_loop() if _over_dataset(op) else contextlib.nullcontext():
        while bool(_call(op, "cond", state)[0]):
            state = _call(op, "body", state)
        return state


def _over_dataset(op: Any) -> bool:
    body = op.graph._get_function(op.get_attr("body").name).graph
    return any(each.type == "IteratorGetNextAsOptional" for each in body.get_operations())


def _call(op: Any, attr: str, arguments: list[Any]) -> list[Any]:
    function = op.graph._get_function(op.get_attr(attr).name)
    return list(function.call_flat(*arguments) or ())
