"""Random operations that keep a state: one state for each operation of a traced function, as in TensorFlow.

TensorFlow keeps the state in the operation's kernel. A function that is emitted for other shapes has other kernels. So
an operation whose inputs are known becomes a function of its own, which is called before the emitted function. Called
inside it, it could wait for a thread that waits for it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from fdt.compat.tensorflow import atomic_function, constant_op, context, execute, func_graph, ops
from replica.graph.flatten import GraphNode, eager_attrs

_loops = [0]  # numbers of the running loops over datasets, the innermost last
_count = [0]


@contextlib.contextmanager
def in_new_loop() -> Iterator[None]:
    """Reset states while the context lasts: tf.data makes the body of a loop over a dataset anew for each execution."""
    _count[0] += 1
    _loops.append(_count[0])
    try:
        yield
    finally:
        _loops.pop()


def drawn(node: GraphNode, tensors: Sequence[Any]) -> Any:
    """Create an operation whose inputs are only known at run time, in the current graph; it draws in the function."""
    attrs, kind = eager_attrs(node.op), node.op.type

    def draw(*arrays: Any) -> list[Any]:
        inputs = [constant_op.constant(array, t.dtype) for array, t in zip(arrays, node.op.inputs, strict=True)]
        made = execute.execute(kind, len(node.op.outputs), inputs, attrs, context.context())
        return [t.numpy() for t in made]

    return tf.numpy_function(draw, list(tensors), [t.dtype for t in node.op.outputs])[0].op


def draws(node: GraphNode, inputs: Sequence[Any]) -> list[Any]:
    """Run a random operation now, with its state; return its outputs. `inputs`: eager tensors."""
    name = node.draw_in(_loops[-1], _function).name.decode()
    return list(execute.execute(name, len(node.op.outputs), list(inputs), (), context.context()))


def _function(op: Any) -> Any:
    graph = func_graph.FuncGraph("draw")
    with graph.as_default():
        graph.inputs = [tf.compat.v1.placeholder(t.dtype) for t in op.inputs]
        attrs = {k: v for k, v in op.node_def.attr.items() if not k.startswith("_")}
        dtypes = [t.dtype for t in op.outputs]
        made = graph._create_op_internal(op.type, list(graph.inputs), dtypes, attrs=attrs, op_def=op.op_def)
        graph.outputs = list(made.outputs)
    return atomic_function.from_func_graph(f"draw_{ops.uid()}", graph, {})
