"""Numbers that the script reads behind a step, which are rank 0's on every worker."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import where
from fdt.process_group import ReplicaGroup

METHODS = ("__float__", "__int__", "__index__", "numpy")


class ReadNumbers:
    """The numbers of a worker's script.

    Args:
        group: The ranks.
        in_step: Returns whether a step runs, or its gradients have not been applied. Numbers stay this worker's there,
            because they may decide whether its gradients are applied.
    """

    def __init__(self, group: ReplicaGroup, in_step: Callable[[], bool]) -> None:
        self._group, self._in_step = group, in_step

    def of_tensor(self, tensor: Any) -> Any:
        """Return a tensor of the number that rank 0 reads at this line."""
        if self._in_step():
            return tensor
        number = tensor.numpy().item()
        of_rank_0 = self._group.rank_0_reads(where(), number)
        return tensor if of_rank_0 == number else tf.constant(of_rank_0, tensor.dtype)

    def of_result(self, result: Any) -> Any:
        """Return what `train_on_batch` gives rank 0; arrays stay this worker's."""
        return tf.nest.map_structure(self._of_float, result)

    def _of_float(self, number: Any) -> Any:
        plain = isinstance(number, (float, np.floating))
        return type(number)(self._group.rank_0_reads(where(), float(number))) if plain else number
