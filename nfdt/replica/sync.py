"""Collectives of a replica script: sums over workers, and rank 0's values for all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.process_group import ReplicaGroup
from replica.exchange import GroupedExchange, arrays_of_rank_0
from replica.placement import PARTIAL


def added(group: ReplicaGroup, tensors: Sequence[Any], name: str) -> list[Any]:
    """Return each tensor, summed over the workers in float64."""
    arrays = [np.asarray(tensor, np.float64) for tensor in tensors]
    sums = GroupedExchange(group).replicated(name, arrays, [PARTIAL] * len(arrays))
    return [tf.cast(tf.constant(total), tensor.dtype) for total, tensor in zip(sums, tensors, strict=True)]


def become_rank_0s(group: ReplicaGroup, held: Mapping[str, Sequence[Any]]) -> None:
    """Give variables, by name, the values of rank 0's variables of that name. Another worker may have none yet."""
    arrays = {name: [np.asarray(v) for v in variables] for name, variables in held.items()}
    found = arrays_of_rank_0(group, arrays, "weights")
    for name in found if group.rank else ():  # rank 0 keeps its own: it has served pushes since it sent them
        for variable, value in zip(held.get(name, ()), found[name], strict=False):
            variable.assign(tf.cast(tf.constant(value), variable.dtype))
