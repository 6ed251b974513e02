"""Numbers that the script reads behind a step, which are rank 0's on every worker."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import by_script, script_frames
from fdt.compat.tensorflow import ops
from fdt.patches import replace
from fdt.process_group import ReplicaGroup

METHODS = ("__float__", "__int__", "__index__", "numpy")


def rank_0s(group: ReplicaGroup, value: Any, kind: str) -> Any:
    """Return what rank 0's script reads in the place of `value`; `kind`: what it must have in common with it."""
    frames = (f"{os.path.basename(f.f_code.co_filename)}:{f.f_lineno}" for f in script_frames())
    return group.rank_0_reads(" ".join([kind, *frames]), value)


class ReadNumbers:
    """The numbers of a worker's script.

    Args:
        group: The ranks.
        own: Returns whether a number that is read now is this worker's: before the first step all workers compute the
            same; within a step, until its gradients are applied, it may decide whether they are.
    """

    def __init__(self, group: ReplicaGroup, own: Callable[[], bool]) -> None:
        self._group, self._own = group, own

    def of_tensor(self, tensor: Any) -> Any:
        """Return a tensor of the number that rank 0 reads in the place of `tensor`."""
        if self._own():
            return tensor
        number = tensor.numpy().item()
        of_rank_0 = rank_0s(self._group, number, tensor.dtype.name)
        if of_rank_0 == number:
            return tensor
        with tf.init_scope():
            return tf.constant(of_rank_0, tensor.dtype)

    def of_result(self, result: Any) -> Any:
        """Return what `train_on_batch` gives rank 0; arrays stay this worker's."""
        return tf.nest.map_structure(self._of_float, result)

    def _of_float(self, number: Any) -> Any:
        plain = isinstance(number, (float, np.floating))
        return type(number)(rank_0s(self._group, float(number), "float")) if plain else number


@contextlib.contextmanager
def agreed_reads(agreed: Callable[[Any], Any], methods: Sequence[str]) -> Iterator[None]:
    """Within the context, a number that the script reads from tensor `t` by one of `methods` is that of `agreed(t)`."""
    busy = [False]
    with contextlib.ExitStack() as stack:
        for name in methods:
            original = getattr(ops._EagerTensorBase, name)
            replace(stack, ops._EagerTensorBase, name, _reading(original, agreed, busy))
        yield


def _reading(original: Any, agreed: Callable[[Any], Any], busy: list[bool]) -> Any:
    @functools.wraps(original)
    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if busy[0] or not by_script() or not _is_number(tensor):
            return original(tensor, *args, **kwargs)
        busy[0] = True
        try:
            tensor = agreed(tensor)
        finally:
            busy[0] = False
        return original(tensor, *args, **kwargs)

    return read


def _is_number(tensor: Any) -> bool:
    kinds = tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool
    return bool(kinds and tensor.shape.rank == 0)
