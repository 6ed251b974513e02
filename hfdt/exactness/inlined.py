"""The script's `tf.function`s, traced into the graph of the step that calls them, so that their sums have adjoints."""

import inspect
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import of_script
from fdt.compat.tensorflow import polymorphic_function
from fdt.keras.variables import as_python
from fdt.patches import Patch

# The stateful operations that compute the same in the graph of the step. Random numbers would differ: TensorFlow seeds
# an operation by its place in its graph.
_ALIKE = {
    *("Assert", "LookupTableFindV2", "ReadVariableOp", "ResourceGather", "ResourceGatherNd"),
    *("PartitionedCall", "StatefulPartitionedCall"),
}


def inlining() -> Patch:
    """Return the replacement of calls that this thread makes while it traces the current graph."""
    graph, thread = tf.compat.v1.get_default_graph(), threading.get_ident()

    def call(original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        traced = threading.get_ident() == thread and tf.compat.v1.get_default_graph() is graph
        if not traced or not _computes_alike(function, args, kwargs):
            return original(function, *args, **kwargs)
        args, kwargs = tf.nest.map_structure(_as_traced, (args, kwargs))
        return _as_returned(as_python(function, function.python_function)(*args, **kwargs))

    return Patch(polymorphic_function.Function, "__call__", call)


def _computes_alike(function: Any, args: Any, kwargs: Any) -> bool:
    """Return whether the script's function computes the same in another graph. It has created its variables then."""
    code = getattr(inspect.unwrap(function.python_function), "__code__", None)
    if code is None or not of_script(code.co_filename) or function.input_signature or function._jit_compile:
        return False
    operations = function.get_concrete_function(*args, **kwargs).graph.get_operations()
    return all(op.type in _ALIKE or not op.op_def.is_stateful for op in operations)


def _as_traced(value: Any) -> Any:
    """Return an argument as the function receives it: a tensor for an array, a NumPy number, a column of pandas."""
    kept = tf.is_tensor(value) or isinstance(value, (np.str_, tf.Variable, type))
    return value if kept or not hasattr(value, "__array__") else tf.convert_to_tensor(value)


def _as_returned(results: Any) -> Any:
    """Return results as the function's call has them: tensors, of which an unused one has a gradient of zeros."""
    flat = tf.nest.flatten(results, expand_composites=True)
    flat = [each if each is None else tf.convert_to_tensor(each) for each in flat]
    known = [i for i, each in enumerate(flat) if each is not None and each.dtype.is_floating]
    for i, tensor in zip(known, tf.identity_n([flat[i] for i in known]) if known else (), strict=True):
        flat[i] = tensor
    return tf.nest.pack_sequence_as(results, flat, expand_composites=True)
