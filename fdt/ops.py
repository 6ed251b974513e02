"""TensorFlow operations and objects that both engines share.

Fast calls of compiled functions, the non-finite guard, values that belong to an object, and tensors of mapped arrays.

Shared memory holds a data set once; `tf.constant` would add a copy for each rank. DLPack shares the bytes, but NumPy
does not export a read-only array, so the array's memory is declared writable. No code writes to it: TensorFlow reuses
an input's buffer only where nothing else references the tensor, and the caller references it while it reads.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import ml_dtypes
import numpy as np
import tensorflow as tf

from fdt.typing import Array, Tensor


def flat_call(concrete: Any) -> Callable[[list[Tensor]], Any]:
    """Return a function of a tf.ConcreteFunction's tensors, in the order of tracing, to its structured outputs.

    A call by signature first binds and casts every argument in Python, 8 us each (measured): half the time of a
    parameter server's update of a small model. TensorFlow has no public function that omits this.
    """
    return functools.partial(concrete._call_flat, captured_inputs=concrete.captured_inputs)


def nbytes(tensor: Any) -> int:
    """Return the size of a tensor or variable in bytes; 0 where its shape is not known yet."""
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)


def all_finite(gradients: Sequence[Tensor]) -> Tensor:
    """Return a bool scalar: whether all gradients are finite.

    One sum over each gradient suffices: a sum with NaN or infinity among its terms is not finite.
    """
    return tf.math.is_finite(tf.add_n([tf.reduce_sum(tf.cast(g, tf.float32)) for g in gradients] or [tf.constant(0.0)]))


def finite_part(values: Tensor) -> Tensor:
    """Return the values with 0 in place of NaN and infinity; values of a type without these as they are."""
    return tf.where(tf.math.is_finite(values), values, tf.zeros_like(values)) if values.dtype.is_floating else values


T = TypeVar("T")
Node = TypeVar("Node", bound=Hashable)


def reached(start: Iterable[Node], onward: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Return the nodes of a graph that are reached from `start`, with these. `onward`: the next nodes of one."""
    seen, waiting = set[Node](), list(start)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += onward(node)
    return seen


def all_nodes(graph: Any) -> Sequence[Any]:
    """Return the nodes of a GraphDef and of its functions."""
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]


PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")  # operations that call Python

_numbers = itertools.count()


class IdentityMap(Generic[T]):
    """Values by object, each stored as an attribute of its object.

    So a value may reference its object, as an operation references its graph, and both are freed together. In a
    `WeakKeyDictionary` such a value would keep its key alive forever.
    """

    def __init__(self) -> None:
        self._name = f"_fdt_beside_{next(_numbers)}"

    def get(self, owner: Any) -> T | None:
        return getattr(owner, self._name, None)

    def put(self, owner: Any, value: T) -> None:
        setattr(owner, self._name, value)


ALIGNMENT = 64


class _Writable:
    """Declares an array's memory writable, and keeps it mapped."""

    def __init__(self, array: Array) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def mapped_tensor(array: Array) -> Any:
    """Return `array` as a CPU tensor of the same dtype and shape.

    Strings, empty or unaligned arrays, and dtypes that DLPack does not support are copied.
    """
    with tf.device("CPU:0"):
        if array.dtype == ml_dtypes.bfloat16:
            return tf.bitcast(mapped_tensor(array.view(np.uint16)), tf.bfloat16)
        if array.dtype.kind not in "biufc" or not array.size or array.ctypes.data % ALIGNMENT:
            return tf.constant(array)
        shared = array if array.flags.writeable else np.asarray(_Writable(array))
        return tf.experimental.dlpack.from_dlpack(shared.__dlpack__())


def is_numeric(dtype: Any) -> bool:
    """Return whether a TensorFlow type is one of real numbers or flags."""
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)


def flat_logs(logs: Any) -> dict[str, Any]:
    """Return a step's results by name; those of dicts in it have their own names, unless two are equal."""
    flat: dict[str, Any] = {}
    for name, value in logs.items() if isinstance(logs, Mapping) else ():
        inner = flat_logs(value) if isinstance(value, Mapping) else {name: value}
        if inner.keys() & {*flat, *logs.keys() - {name}}:
            return dict(logs)
        flat.update(inner)
    return flat


def is_number(value: Any) -> bool:
    """Return whether a log is one number."""
    if tf.is_tensor(value):
        return tf.TensorShape(value.shape).rank == 0 and is_numeric(tf.as_dtype(value.dtype))
    return isinstance(value, (int, float, np.number, np.bool_))
