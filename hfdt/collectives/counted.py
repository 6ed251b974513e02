"""A Comm that counts the exchanges a rank entered and left, so that another thread sees whether the rank waits."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hfdt.collectives.base import Comm, Tensor


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
