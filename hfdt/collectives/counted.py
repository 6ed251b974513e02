"""Counts the exchanges that a rank has entered and left, so that another thread sees whether it waits for others."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hfdt.collectives.base import Comm, Tensor


class CountedComm:
    """As `comm`, counted. An exchange in a graph is counted by two additions beside it, which nothing waits for."""

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
        """(entered, left). From any thread."""
        left = int(self._left.numpy())  # first: an exchange that begins and ends meanwhile must not seem to last
        return int(self._entered.numpy()), left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)
