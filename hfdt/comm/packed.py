"""Comms whose exchange is Python on one packed vector: packing in the graph, and a fixed order of exchanges.

Matching by order instead of by name is what MPI does, so all ranks must exchange in one order. TensorFlow promises none
between ops without data between them: each exchange of a graph is made to wait for the one before.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hfdt.comm.base import Tensor, by_dtype

Vector = npt.NDArray[Any]
_NARROW = ("float16", "bfloat16", "bool")  # neither MPI nor numpy_function knows how to add these


class Packed:
    """Turns `reduce(vector, name) -> vector` on NumPy vectors into `Comm.sum`."""

    def __init__(self, reduce: Callable[[Vector, str], Vector]) -> None:
        self._reduce = reduce
        self._last: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # graph -> its last exchange

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return by_dtype(tensors, name, self._add)

    def _add(self, tensors: list[Tensor], name: str) -> Sequence[Tensor]:
        dtype = tensors[0].dtype
        wire = tf.float32 if dtype.name in _NARROW else dtype
        total = self._exchange(tf.concat([tf.reshape(tf.cast(t, wire), [-1]) for t in tensors], axis=0), name)
        sizes = tf.stack([tf.size(t) for t in tensors])
        parts = tf.split(total, sizes, num=len(tensors))
        return [
            tf.ensure_shape(tf.cast(tf.reshape(part, tf.shape(t)), dtype), t.shape)
            for part, t in zip(parts, tensors, strict=True)
        ]

    def _exchange(self, vector: Tensor, name: str) -> Tensor:
        if tf.executing_eagerly():
            return tf.constant(self._reduce(np.array(vector), name))
        graph = tf.compat.v1.get_default_graph()
        before = self._last.get(graph)
        with tf.control_dependencies([before] if before is not None else []):
            total = tf.numpy_function(lambda v: self._reduce(v, name), [vector], vector.dtype, stateful=True)
        self._last[graph] = total.op
        return tf.ensure_shape(total, vector.shape)
