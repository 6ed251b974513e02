"""Eager tensors with a placement: their memory holds the rank's part, their `.shape` is the global shape."""

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops

from fdt.typing import Tensor
from replica.placement import REPLICATE, Placement, Replicate, local_shape

EagerTensor = tf.__internal__.EagerTensor

# Attributes of an eager tensor; None for tensors without a placement.
PLACEMENT, SHAPE, WHOLE, SIBLINGS = "_placement", "_global_shape", "_replicated", "_siblings"
local_shape_of = EagerTensor._shape_tuple  # of this rank's part: saved before reads.py patches it
local_array = EagerTensor._numpy_internal


class _Mode(threading.local):
    def __init__(self) -> None:
        self.undivided = threading.current_thread() is not threading.main_thread()


mode = _Mode()  # undivided: this thread must not call collectives, for instance because it makes data


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """Give this thread's operations replicated inputs, and divide nothing, while the context lasts."""
    before, mode.undivided = mode.undivided, True
    try:
        yield
    finally:
        mode.undivided = before


class PlacementError(Exception):
    """Raised where a rule contradicts its operation: an error of this project, never of the script."""


def install() -> None:
    """Define the attributes' defaults on eager tensors."""
    for name in (PLACEMENT, SHAPE, WHOLE, SIBLINGS):
        setattr(ops._EagerTensorBase, name, None)


def is_placed(value: Any) -> bool:
    """Return whether `value` is an eager tensor of which this rank may have only a part."""
    return type(value) is EagerTensor and value._placement is not None


def placement_of(tensor: Tensor) -> Placement:
    """Return an eager tensor's placement."""
    return tensor._placement or REPLICATE


def place(local: Tensor, placement: Placement, shape: Sequence[int | None], whole: Tensor = None) -> Tensor:
    """Mark `local`, a new eager tensor, as this rank's part of a global tensor; return it.

    Args:
        local: The part.
        placement: The placement; Replicate leaves `local` unmarked.
        shape: The shape of the global tensor.
        whole: The global tensor, where it is known.
    """
    if isinstance(placement, Replicate):
        return local
    local._placement, local._global_shape, local._replicated = placement, tuple(shape), whole
    local._tensor_shape = _tensor_shape(local._global_shape)
    return local


@functools.lru_cache(maxsize=4096)
def _tensor_shape(shape: tuple[int | None, ...]) -> Any:
    return tf.TensorShape(shape)


def check(local: Tensor, placement: Placement, shape: Sequence[int | None], rank: int, op: str) -> None:
    """Raise PlacementError unless `local` has the shape of `rank`'s part of a global tensor of `shape`."""
    expected = local_shape(shape, placement, rank)
    if any(e not in (None, n) for e, n in zip(expected, local_shape_of(local), strict=True)):
        raise PlacementError(f"{op}: {tuple(local_shape_of(local))} is no part of {tuple(shape)} as {placement}")


def unrecorded() -> Any:
    """Return a context in which no gradient tape records."""
    return record.stop_recording()


def value_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of this rank's part, for use in a key."""
    return np.asarray(local_array(tensor)).tobytes()
