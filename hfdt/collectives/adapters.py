"""Adapters of Comms: for those that reduce one packed NumPy vector in Python, and one that counts exchanges.

In the graph an exchange of packed vectors is one operation, which packs the vector itself: packing by TensorFlow would
add three operations for each tensor.

Like MPI, such a Comm matches exchanges by order instead of name, so all ranks must exchange in one order. TensorFlow
guarantees no order of operations without data between them, so each exchange of a graph waits for the one before.

The count of exchanges entered and left shows another thread whether the rank waits.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.ops import IdentityMap
from fdt.typing import Tensor, Vector
from hfdt.collectives.base import Comm, by_dtype

_NARROW = ("float16", "bfloat16", "bool")  # dtypes that MPI or numpy_function cannot add


class Packed:
    """An adapter that makes `Comm.sum` of a function `reduce(vector, name) -> vector` on NumPy vectors."""

    def __init__(self, reduce: Callable[[Vector, str], Vector]) -> None:
        self._reduce = reduce
        self._last: IdentityMap[Any] = IdentityMap()  # graph -> its last exchange

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return by_dtype(tensors, name, self._add)

    def _add(self, tensors: list[Tensor], name: str) -> Sequence[Tensor]:
        dtype = tensors[0].dtype
        if dtype.name in _NARROW:
            return [tf.cast(t, dtype) for t in self._add([tf.cast(t, tf.float32) for t in tensors], name)]
        if tf.executing_eagerly():
            return [tf.constant(part) for part in self._added(name, *(t.numpy() for t in tensors))]
        graph = tf.compat.v1.get_default_graph()
        before = self._last.get(graph)
        with tf.control_dependencies([before] if before is not None else []):
            added = functools.partial(self._added, name)
            parts = tf.numpy_function(added, tensors, [dtype] * len(tensors), stateful=True)
        self._last.put(graph, parts[0].op)
        for part, tensor in zip(parts, tensors, strict=True):
            part.set_shape(tensor.shape)
        return parts  # type: ignore[no-any-return]

    def _added(self, name: str, *arrays: Any) -> list[Vector]:
        """Return the arrays, each added over ranks."""
        total = self._reduce(np.concatenate([np.ravel(a) for a in arrays]), name)
        ends = np.cumsum([np.size(a) for a in arrays])
        return [part.reshape(np.shape(a)) for part, a in zip(np.split(total, ends[:-1]), arrays, strict=True)]


class CountedComm:
    """A wrapper of `comm` that counts exchanges. In a graph, two additions beside each exchange count it.

    No operation waits for the additions.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size
        with tf.device("CPU:0"):
            self._entered, self._left = (tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2))

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        tensors = [tf.convert_to_tensor(t) for t in tensors]
        with tf.control_dependencies(tensors):
            entered = self._entered.assign_add(1, read_value=False)
        added = self._comm.sum(tensors, name)
        with tf.control_dependencies([*added, *([] if tf.executing_eagerly() else [entered])]):
            self._left.assign_add(1, read_value=False)
        return added

    def counts(self) -> tuple[int, int]:
        """Return the numbers of exchanges entered and left. Callable from any thread."""
        left = int(
            self._left.numpy()
        )  # read first: an exchange that begins and ends between the two reads must not appear unfinished
        return int(self._entered.numpy()), left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)
