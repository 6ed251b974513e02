"""Conversions of eager tensors between placements."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import where
from fdt.compat.tensorflow import constant_op, context, pywrap_tfe
from fdt.errors import CaptureError
from fdt.typing import Tensor
from replica.exchange import GroupedExchange
from replica.placement import Partial, Placement, Shard
from replica.tensors import EagerTensor, local_array, local_shape_of, mode, place, placement_of, unrecorded

_fast_path = pywrap_tfe.TFE_Py_FastPathExecute  # TensorFlow's own fast path, since a batch is divided in every step
IN_A_THREAD = (
    "only the script's main thread can read a divided batch. Received: a read in a thread, generator or py_function at "
    "{where}; read the numbers in the main thread (.numpy()) and pass them on"
)


class Converter:
    """A converter of eager tensors between placements.

    Args:
        exchange: The collectives.
        execute: TensorFlow's own `execute`, which ignores placements.
    """

    def __init__(self, exchange: GroupedExchange, execute: Any) -> None:
        self.exchange, self._execute = exchange, execute
        self.rank, self.size = exchange.rank, exchange.size

    def whole(self, tensor: Tensor, name: str = "read") -> Tensor:
        """Return the global tensor; a collective, unless it is known already."""
        if tensor._placement is None:
            return tensor
        if not is_known(tensor):
            self._replicate([tensor, *self._partial_siblings(tensor)], name)
        return tensor._replicated

    def all_whole(self, tensors: Sequence[Tensor], name: str) -> None:
        """Make the global values of `tensors` known, in one collective."""
        missing = {id(t): t for t in tensors if t._placement is not None and not is_known(t)}
        for tensor in list(missing.values()):
            missing |= {id(t): t for t in self._partial_siblings(tensor)}
        if missing:
            self._replicate(list(missing.values()), name)

    def converted(self, tensor: Tensor, target: Placement) -> Tensor:
        """Return the tensor converted to placement `target`: its memory holds this rank's part under it."""
        placement = placement_of(tensor)
        if placement == target:
            return tensor
        if isinstance(target, Shard):
            return self.part(self.whole(tensor), target)
        if isinstance(target, Partial):
            return self._addend(self.whole(tensor))
        return self.whole(tensor)

    def part(self, whole: Tensor, target: Shard) -> Tensor:
        """Return this rank's entries of a global tensor."""
        begin, size = _range(len(local_shape_of(whole)), target, self.rank)
        return _fast_path(context.context(), "Slice", None, whole, begin, size)

    def cut(self, whole: Tensor, placement: Shard) -> Tensor:
        """Return this rank's part of `whole` as a placed tensor, which keeps `whole` for reads of the global value."""
        with unrecorded():
            return place(self.part(whole, placement), placement, local_shape_of(whole), whole)

    def _addend(self, whole: Tensor) -> Tensor:
        """Return the value on rank 0 and zeros on the others."""
        if self.rank == 0:
            return whole
        return self._execute("ZerosLike", 1, [whole], ("T", whole._datatype_enum()), context.context())[0]

    def _partial_siblings(self, tensor: Tensor) -> list[Tensor]:
        """Return Partials that were made with this one, as gradients are: one collective replicates all of them."""
        if not isinstance(tensor._placement, Partial) or tensor._siblings is None:
            return []
        return [t for t in tensor._siblings if t is not tensor and t._replicated is None]

    def _replicate(self, tensors: Sequence[Tensor], name: str) -> None:
        if mode.undivided:
            raise CaptureError(IN_A_THREAD.format(where=where()))
        arrays = [np.asarray(local_array(t), t.dtype.as_numpy_dtype) for t in tensors]
        found = self.exchange.replicated(name, arrays, [t._placement for t in tensors])
        with tf.init_scope(), unrecorded():  # tensors are also read during tracing
            for tensor, array in zip(tensors, found, strict=True):
                tensor._replicated = constant_op.constant(array, tensor.dtype)


def is_known(tensor: Tensor) -> bool:
    """Return whether a placed tensor's global value is known; compute it where this rank can."""
    if tensor._replicated is None and tensor._source is not None:
        tensor._replicated = tensor._source()
    return tensor._replicated is not None


def joined(tensors: Sequence[Any]) -> None:
    """Record that these tensors were made together."""
    partial = [t for t in tensors if type(t) is EagerTensor and isinstance(t._placement, Partial)]
    if len(partial) > 1:
        for tensor in partial:
            tensor._siblings = partial


@functools.lru_cache(maxsize=1024)
def _range(dimensions: int, target: Shard, rank: int) -> tuple[Tensor, Tensor]:
    """Return the begin and the size of a rank's part. Making a tensor takes longer than slicing one."""
    low, high = target.bounds(rank)
    begin, size = [0] * dimensions, [-1] * dimensions
    begin[target.axis], size[target.axis] = low, high - low
    return constant_op.constant(begin, tf.int32), constant_op.constant(size, tf.int32)
