"""Collectives inside an emitted graph: Partials of one dtype are concatenated before the call of Python.

A call of Python costs some 20 microseconds for each tensor that it takes or returns. So TensorFlow concatenates a
step's gradients and metrics, and splits them again.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import tensorflow as tf

from fdt.ops import nbytes
from fdt.tensors import buckets
from fdt.typing import Tensor
from replica.exchange import HALF_FROM, GroupedExchange
from replica.graph.emitted import Value
from replica.placement import Partial, Placement
from replica.plan import Array


def added_collectives(exchange: GroupedExchange, name: str, values: Sequence[Value]) -> tuple[list[Tensor], Any]:
    """Add operations that replicate values.

    Each bucket is one collective; their order is the same on every rank. A collective starts in a thread as soon as its
    values are computed, while operations for other values still run. The operations that wait for the results come
    after the last start, because the process may have one thread for operations.

    Args:
        exchange: The collectives.
        name: The name of these collectives.
        values: Partials and Shards, in the order in which they are computed.

    Returns:
        The global tensors, and the operation that a later collective must wait for.
    """
    order = buckets((nbytes(v.tensor) for v in values), exchange.bucket_bytes)
    packed = [_Packed(exchange, [values[i] for i in bucket]) for bucket in order]
    if len(packed) == 1:
        (only,) = packed
        received = [tf.numpy_function(lambda *a: exchange.replicated(name, a, only.placements), only.sent, only.dtypes)]
    else:
        received = _overlapped(exchange, name, packed)
    wholes = [tensor for each, tensors in zip(packed, received, strict=True) for tensor in each.unpacked(tensors)]
    return wholes, received[-1][0].op


def _overlapped(exchange: GroupedExchange, name: str, packed: "Sequence[_Packed]") -> list[list[Tensor]]:
    """Add an operation that starts each bucket, and one that returns its sums."""
    started: dict[int, Future[list[Array]]] = {}

    def start(number: int, *arrays: Array) -> None:
        started[number] = exchange.start(f"{name}.{number}", arrays, packed[number].placements)

    before: list[Any] = []
    for number, each in enumerate(packed):
        with tf.control_dependencies(before):
            before = [tf.numpy_function(lambda *arrays, n=number: start(n, *arrays), each.sent, [])]
    with tf.control_dependencies(before):
        return [
            tf.numpy_function(lambda n=number: started[n].result(), [], each.dtypes)
            for number, each in enumerate(packed)
        ]


class _Packed:
    """The values of one collective, as vectors.

    Attributes:
        sent: The vectors, and Shards as they are.
        dtypes: Of each.
        placements: Of each.
    """

    def __init__(self, exchange: GroupedExchange, values: Sequence[Value]) -> None:
        joined: dict[tuple[str, Any], list[int]] = {}
        for index, value in enumerate(values):
            joined.setdefault(_key(exchange, value, index), []).append(index)
        self._values, self._chosen = values, list(joined.values())
        self.sent = [_joined([values[i].tensor for i in of]) for of in self._chosen]
        self.dtypes = [tensor.dtype for tensor in self.sent]
        self.placements: list[Placement] = [values[of[0]].placement for of in self._chosen]

    def unpacked(self, received: Sequence[Tensor]) -> list[Tensor]:
        """Return the global tensors of the global vectors."""
        wholes: list[Tensor] = [None] * len(self._values)
        for of, whole in zip(self._chosen, received, strict=True):
            for index, tensor in zip(of, _split(whole, [self._values[i].tensor for i in of]), strict=True):
                wholes[index] = tensor
        return wholes


def _key(exchange: GroupedExchange, value: Value, index: int) -> tuple[str, Any]:
    """Return a key of values that may form one vector: Partials of one dtype.

    With 16 bits, small ones stay apart: the size of a vector decides whether it is sent as float32. A dtype alone would
    be no key beside an index: TensorFlow's float32 equals 1.
    """
    elements = value.tensor.shape.num_elements()
    if not isinstance(value.placement, Partial) or elements is None or (exchange.half and elements < HALF_FROM):
        return "alone", index
    return "joined", value.tensor.dtype


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)


def _split(whole: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    if len(like) == 1:
        return [whole]
    parts = tf.split(whole, [t.shape.num_elements() for t in like])
    return [tf.reshape(part, t.shape) for part, t in zip(parts, like, strict=True)]
