"""What workers of a replica script add up, or hold alike, where all of them have come."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import where
from fdt.service.meeting import Meeting


def added(meeting: Meeting, tensors: Sequence[Any], name: str) -> list[Any]:
    """Each tensor, summed over the workers in float64."""
    sums = []
    for i, tensor in enumerate(tensors):
        vector = meeting.add(f"{name} {i}", tensor.numpy().ravel().astype("float64"), where)
        sums.append(tf.cast(tf.reshape(tf.constant(vector), tensor.shape), tensor.dtype))
    return sums


def become_rank_0s(meeting: Meeting, variables: Sequence[Any], shapes: Sequence[Any], name: str) -> None:
    """Give `variables` what rank 0's hold. `shapes`: of rank 0's; another may have none yet."""
    keep = [v.read_value() for v in variables] if meeting.rank == 0 else [tf.zeros(shape) for shape in shapes]
    whole = added(meeting, keep, name)
    if meeting.rank:  # rank 0 has served others since it gave its own
        for variable, value in zip(variables, whole, strict=False):
            variable.assign(tf.cast(value, variable.dtype))
