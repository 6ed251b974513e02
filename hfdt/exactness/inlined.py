"""The script's `tf.function`s within a traced step, traced into the graph of the step: so their sums have adjoints."""

import inspect
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import of_script
from fdt.compat.tensorflow import polymorphic_function
from fdt.keras.variables import call_converted
from fdt.patches import Patch

# What may run in the step's graph as well as in the function's. Random numbers would differ: TensorFlow seeds an
# operation by its place in its graph.
_READS = {"ReadVariableOp", "ResourceGather", "PartitionedCall", "StatefulPartitionedCall"}


def inlining() -> Patch:
    """Return the replacement of calls that this thread makes while it traces the current graph."""
    graph, thread = tf.compat.v1.get_default_graph(), threading.get_ident()

    def call(original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        traced = threading.get_ident() == thread and tf.compat.v1.get_default_graph() is graph
        if not traced or not _can_be(function, args, kwargs):
            return original(function, *args, **kwargs)
        args, kwargs = tf.nest.map_structure(_as_traced, (args, kwargs))
        flavor = "tf_keras" if function._autograph else ""
        return tf.nest.map_structure(_as_returned, call_converted(flavor, function.python_function, *args, **kwargs))

    return Patch(polymorphic_function.Function, "__call__", call)


def _can_be(function: Any, args: Any, kwargs: Any) -> bool:
    """Return whether the script's function computes the same in another graph. It has created its variables then."""
    code = getattr(inspect.unwrap(function.python_function), "__code__", None)
    if code is None or not of_script(code.co_filename) or function.input_signature or function._jit_compile:
        return False
    operations = function.get_concrete_function(*args, **kwargs).graph.get_operations()
    return all(op.type in _READS or not op.op_def.is_stateful for op in operations)


def _as_traced(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value


def _as_returned(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, (bool, int, float, np.ndarray, np.generic)) else value
