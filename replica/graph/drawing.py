"""Random operations that keep a state: one state for each operation of a traced function, as in TensorFlow.

TensorFlow keeps the state in the operation's kernel. A function that is emitted for other shapes has other kernels. So
an operation becomes a session of its own, which is run before the emitted function where the inputs are known. Inside
it, the run uses no other thread: an eager function could wait for a thread that waits for it, and eager operations
with equal seeds share one kernel.
"""

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from fdt.compat.tensorflow import config_pb2, constant_op
from replica.graph.flatten import GraphNode

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

    def draw(*arrays: Any) -> list[Any]:
        return list(node.draw_in(_loops[-1], _callable)(*arrays))

    return tf.numpy_function(draw, list(tensors), [t.dtype for t in node.op.outputs])[0].op


def draws(node: GraphNode, inputs: Sequence[Any]) -> list[Any]:
    """Run a random operation now, with its state; return its outputs. `inputs`: eager tensors."""
    arrays = node.draw_in(_loops[-1], _callable)(*(t.numpy() for t in inputs))
    return [constant_op.constant(a, t.dtype) for a, t in zip(arrays, node.op.outputs, strict=True)]


def _callable(op: Any) -> Any:
    """Return a function from the operation's input arrays to its output arrays."""
    graph = tf.Graph()
    with graph.as_default():
        inputs = [tf.compat.v1.placeholder(t.dtype) for t in op.inputs]
        attrs = {k: v for k, v in op.node_def.attr.items() if not k.startswith("_")}
        dtypes = [t.dtype for t in op.outputs]
        made = graph._create_op_internal(op.type, inputs, dtypes, attrs=attrs, op_def=op.op_def)
    options = config_pb2.CallableOptions(
        feed=[t.name for t in inputs],
        fetch=[t.name for t in made.outputs],
        run_options=config_pb2.RunOptions(inter_op_thread_pool=-1),  # the caller's thread
    )
    session = tf.compat.v1.Session(graph=graph)
    call = session._make_callable_from_options(options)
    weakref.finalize(call, session.close)  # at the interpreter's end, before TensorFlow's modules are removed
    return call
