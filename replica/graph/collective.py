"""A collective inside an emitted graph: Partials of one dtype are concatenated before the call of Python."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.typing import Tensor
from replica.exchange import HALF_FROM, GroupedExchange
from replica.graph.emitted import Value
from replica.placement import Partial, Placement
from replica.plan import Array


def added_collective(exchange: GroupedExchange, name: str, values: Sequence[Value]) -> tuple[list[Tensor], Any]:
    """Add operations that replicate values.

    A call of Python costs some 20 microseconds for each tensor that it takes or returns. So TensorFlow concatenates a
    step's gradients and metrics, and splits them again.

    Args:
        exchange: The collectives.
        name: The name of this collective.
        values: Partials and Shards.

    Returns:
        The global tensors, and the operation that a later collective must wait for.
    """
    buckets: dict[tuple[str, Any], list[int]] = {}
    for index, value in enumerate(values):
        buckets.setdefault(_bucket(exchange, value, index), []).append(index)
    chosen = list(buckets.values())
    placements: list[Placement] = [values[of[0]].placement for of in chosen]

    def collective(*arrays: Any) -> list[Array]:
        return exchange.replicated(name, [np.asarray(a) for a in arrays], placements)

    sent = [_joined([values[i].tensor for i in of]) for of in chosen]
    received = tf.numpy_function(collective, sent, [t.dtype for t in sent])
    wholes: list[Tensor] = [None] * len(values)
    for of, whole in zip(chosen, received, strict=True):
        for index, tensor in zip(of, _split(whole, [values[i].tensor for i in of]), strict=True):
            wholes[index] = tensor
    return wholes, received[0].op


def _bucket(exchange: GroupedExchange, value: Value, index: int) -> tuple[str, Any]:
    """Return a key of values that may form one vector: Partials of one dtype.

    With fp16, small ones stay apart: the size of a vector decides whether it is sent as float16. A dtype alone would be
    no key beside an index: TensorFlow's float32 equals 1.
    """
    elements = value.tensor.shape.num_elements()
    if not isinstance(value.placement, Partial) or elements is None or (exchange.fp16 and elements < HALF_FROM):
        return "alone", index
    return "joined", value.tensor.dtype


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)


def _split(whole: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    if len(like) == 1:
        return [whole]
    parts = tf.split(whole, [t.shape.num_elements() for t in like])
    return [tf.reshape(part, t.shape) for part, t in zip(parts, like, strict=True)]
