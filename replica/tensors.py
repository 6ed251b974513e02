"""Eager tensors that carry a placement: the memory holds the rank's part, `.shape` says the global shape."""

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops

from replica.placement import REPLICATE, Placement, Replicate, local_shape

EagerTensor = tf.__internal__.EagerTensor
Tensor = Any

# Attributes of an eager tensor; None for tensors that carry no placement.
PLACEMENT, SHAPE, WHOLE, SIBLINGS = "_placement", "_global_shape", "_replicated", "_siblings"
local_shape_of = EagerTensor._shape_tuple  # of this rank's part, whatever is patched later
local_array = EagerTensor._numpy_internal


class _Mode(threading.local):
    def __init__(self) -> None:
        self.undivided = threading.current_thread() is not threading.main_thread()


mode = _Mode()  # undivided: of a thread that must not call collectives, as those that make data


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """Within, this thread's operations get whole inputs and divide nothing."""
    before, mode.undivided = mode.undivided, True
    try:
        yield
    finally:
        mode.undivided = before


class PlacementError(Exception):
    """A rule that contradicts its operation: a fault of this project, never of the script."""


def install() -> None:
    """Give eager tensors the attributes' defaults."""
    for name in (PLACEMENT, SHAPE, WHOLE, SIBLINGS):
        setattr(ops._EagerTensorBase, name, None)


def is_placed(value: Any) -> bool:
    """Tell whether `value` is an eager tensor of which this rank may hold only a part."""
    return type(value) is EagerTensor and value._placement is not None


def placement_of(tensor: Tensor) -> Placement:
    """Return an eager tensor's placement."""
    return tensor._placement or REPLICATE


def place(local: Tensor, placement: Placement, shape: Sequence[int | None], whole: Tensor = None) -> Tensor:
    """Mark `local`, a new eager tensor, as this rank's part of a global tensor.

    Args:
        local: The part; it is marked itself.
        placement: Replicate leaves it as it is.
        shape: Of the global tensor.
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
    """Raise PlacementError unless `local` has the shape that `rank` holds of `shape`."""
    expected = local_shape(shape, placement, rank)
    if any(e not in (None, n) for e, n in zip(expected, local_shape_of(local), strict=True)):
        raise PlacementError(f"{op}: {tuple(local_shape_of(local))} is no part of {tuple(shape)} as {placement}")


def unrecorded() -> Any:
    """Return a context in which no gradient tape records."""
    return record.stop_recording()


def value_bytes(tensor: Tensor) -> bytes:
    """Return what this rank holds, as a part of a key."""
    return np.asarray(local_array(tensor)).tobytes()
