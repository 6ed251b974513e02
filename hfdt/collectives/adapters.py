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

import ml_dtypes
import numpy as np
import tensorflow as tf

from fdt.ops import IdentityMap
from fdt.typing import Tensor, Vector
from hfdt.collectives.base import Collective, Comm, by_dtype

Matrix = Any  # a NumPy array of two dimensions
Work = Callable[..., list[Vector]]  # (name, array, ...) -> an array for each

HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


class Packed:
    """An adapter that makes the collectives of a Comm of functions on NumPy arrays.

    Args:
        reduce: `reduce(vector, name)` adds a vector over ranks.
        rank: This rank.
        size: The number of ranks.
        scatter: `scatter(matrix)`, of a row for each rank, returns this rank's row of the sum. None uses `reduce`.
        gather: `gather(vector)` returns a matrix of the ranks' vectors. None uses `reduce`.
    """

    def __init__(
        self,
        reduce: Callable[[Vector, str], Vector],
        rank: int,
        size: int,
        scatter: Callable[[Matrix], Vector] | None = None,
        gather: Callable[[Vector], Matrix] | None = None,
    ) -> None:
        self._reduce, self._rank, self._size = reduce, rank, size
        self._scatter, self._gather = scatter, gather
        self._last: IdentityMap[Any] = IdentityMap()  # graph -> its last exchange

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return by_dtype(tensors, name, functools.partial(self._call, self._added, lambda shape: shape))

    def reduce_scatter(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        part = functools.partial(self._call, self._scattered, lambda shape: [shape[0] // self._size])
        return by_dtype(tensors, name, part)

    def all_gather(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        whole = functools.partial(self._call, self._gathered, lambda shape: [shape[0] * self._size])
        return by_dtype(tensors, name, whole)

    def _call(self, work: Work, shaped: Any, tensors: list[Tensor], name: str) -> Sequence[Tensor]:
        """Return `work(name, *arrays)` as tensors. `shaped` maps the shape of a tensor to that of its result."""
        dtype = tensors[0].dtype
        if dtype == tf.bool or (dtype.as_numpy_dtype in HALVES and work != self._added):
            wide = self._call(work, shaped, [tf.cast(t, tf.float32) for t in tensors], name)
            return [tf.cast(t, dtype) for t in wide]
        if tf.executing_eagerly():
            return [tf.constant(part) for part in work(name, *(t.numpy() for t in tensors))]
        graph = tf.compat.v1.get_default_graph()
        before = self._last.get(graph)
        with tf.control_dependencies([before] if before is not None else []):
            half = dtype.as_numpy_dtype if dtype.as_numpy_dtype in HALVES else None  # which numpy_function cannot pass
            sent = [tf.bitcast(t, tf.uint16) for t in tensors] if half else tensors
            call = functools.partial(work, name, half=half) if half else functools.partial(work, name)
            parts = tf.numpy_function(call, sent, [t.dtype for t in sent], stateful=True)
        self._last.put(graph, parts[0].op)
        parts = [tf.bitcast(part, dtype) for part in parts] if half else parts
        for part, tensor in zip(parts, tensors, strict=True):
            part.set_shape(shaped(tensor.shape))
        return parts

    def _added(self, name: str, *arrays: Any, half: Any = None) -> list[Vector]:
        """Return the arrays, each added over ranks. `half`: their dtype, where the arrays hold its bits."""
        vector = np.concatenate([np.ravel(a) for a in arrays])
        total = self._reduce(vector.view(half), name).view(vector.dtype) if half else self._reduce(vector, name)
        ends = np.cumsum([np.size(a) for a in arrays])
        return [part.reshape(np.shape(a)) for part, a in zip(np.split(total, ends[:-1]), arrays, strict=True)]

    def _scattered(self, name: str, *arrays: Any) -> list[Vector]:
        """Return this rank's part of each vector's sum."""
        rows = np.concatenate([a.reshape(self._size, -1) for a in arrays], axis=1)
        if self._scatter is not None:
            own = self._scatter(rows)
        else:
            own = self._reduce(rows.ravel(), name).reshape(rows.shape)[self._rank]
        return np.split(own, np.cumsum([a.size // self._size for a in arrays])[:-1])

    def _gathered(self, name: str, *arrays: Any) -> list[Vector]:
        """Return each vector of all ranks, one after the other."""
        own = np.concatenate(arrays)
        if self._gather is not None:
            rows = self._gather(own)
        else:
            rows = np.zeros((self._size, own.size), own.dtype)
            rows[self._rank] = own
            rows = self._reduce(rows.ravel(), name).reshape(rows.shape)
        return [part.ravel() for part in np.split(rows, np.cumsum([a.size for a in arrays])[:-1], axis=1)]


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
        return self._counted(self._comm.sum, tensors, name)

    def reduce_scatter(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return self._counted(self._comm.reduce_scatter, tensors, name)

    def all_gather(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return self._counted(self._comm.all_gather, tensors, name)

    def pause(self) -> None:
        self._waiting(self._comm.pause)

    def resume(self) -> None:
        self._waiting(self._comm.resume)

    def _waiting(self, wait: Callable[[], None]) -> None:
        self._entered.assign_add(1)
        wait()
        self._left.assign_add(1)

    def _counted(self, collective: Collective, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        tensors = [tf.convert_to_tensor(t) for t in tensors]
        with tf.control_dependencies(tensors):
            entered = self._entered.assign_add(1, read_value=False)
        found = collective(tensors, name)
        with tf.control_dependencies([*found, *([] if tf.executing_eagerly() else [entered])]):
            self._left.assign_add(1, read_value=False)
        return found

    def counts(self) -> tuple[int, int]:
        """Return the numbers of exchanges entered and left. Callable from any thread."""
        left = int(
            self._left.numpy()
        )  # read first: an exchange that begins and ends between the two reads must not appear unfinished
        return int(self._entered.numpy()), left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)
