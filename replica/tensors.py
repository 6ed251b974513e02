"""Eager tensors with a placement: their memory holds the rank's part, their `.shape` is the global shape."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.compat.tensorflow import ops, record
from fdt.typing import Tensor
from replica.placement import REPLICATE, Placement, Replicate, local_shape

EagerTensor = tf.__internal__.EagerTensor

# Attributes of an eager tensor; None for tensors without a placement.
PLACEMENT, SHAPE, WHOLE, SIBLINGS, SPEC = "_placement", "_global_shape", "_replicated", "_siblings", "_spec"
SOURCE = "_source"  # a function that returns the global tensor without other ranks
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
    for name in (PLACEMENT, SHAPE, WHOLE, SIBLINGS, SPEC, SOURCE):
        setattr(ops._EagerTensorBase, name, None)


@functools.cache
def is_number(dtype: tf.DType) -> bool:
    """Return whether ranks can exchange values of this dtype."""
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex) and not dtype.is_quantized


def is_placed(value: Any) -> bool:
    """Return whether `value` is an eager tensor of which this rank may have only a part."""
    return type(value) is EagerTensor and value._placement is not None


def placement_of(tensor: Tensor) -> Placement:
    """Return an eager tensor's placement."""
    return tensor._placement or REPLICATE


def place(
    local: Tensor,
    placement: Placement,
    shape: Sequence[int | None],
    whole: Tensor = None,
    source: Callable[[], Tensor] | None = None,
) -> Tensor:
    """Mark `local`, a new eager tensor, as this rank's part of a global tensor; return it.

    Args:
        local: The part.
        placement: The placement; Replicate leaves `local` unmarked.
        shape: The shape of the global tensor.
        whole: The global tensor, where it is known.
        source: Returns the global tensor, where this rank can compute it.
    """
    if isinstance(placement, Replicate):
        return local
    marked(local, spec_of(placement, tuple(shape), local._datatype_enum()))
    local._replicated, local._source = whole, source
    return local


@dataclass(frozen=True, eq=False)
class PlacedSpec:
    """The description of placed tensors of one placement, global shape and dtype.

    Each combination has one object, compared by identity: a key that costs no hash of its contents.
    """

    placement: Placement
    shape: tuple[int | None, ...]
    tensor_shape: Any


@functools.lru_cache(maxsize=4096)
def spec_of(placement: Placement, shape: tuple[int | None, ...], dtype: int) -> PlacedSpec:
    """Return the one description of a placement, a global shape and TensorFlow's number of a dtype."""
    return PlacedSpec(placement, shape, tf.TensorShape(shape))


def marked(local: Tensor, spec: PlacedSpec) -> Tensor:
    """Mark `local`, a new eager tensor, as this rank's part of a global tensor of this spec; return it."""
    local._placement, local._global_shape, local._tensor_shape = spec.placement, spec.shape, spec.tensor_shape
    local._spec = spec
    return local


def described(tensor: Any) -> Any:
    """Return a key that is equal for tensors of one placement, shape and dtype, and for objects of one other type."""
    if type(tensor) is not EagerTensor:
        return type(tensor)
    return tensor._spec or (tensor._placement, tensor._shape_tuple(), tensor._datatype_enum())


def check(local: Tensor, placement: Placement, shape: Sequence[int | None], rank: int, op: str) -> None:
    """Raise PlacementError unless `local` has the shape of `rank`'s part of a global tensor of `shape`."""
    expected = local_shape(shape, placement, rank)
    if any(e not in (None, n) for e, n in zip(expected, local_shape_of(local), strict=True)):
        raise PlacementError(
            f"{op}: {tuple(local_shape_of(local))} is not the local shape of {tuple(shape)} as {placement}"
        )


def unrecorded() -> Any:
    """Return a context in which no gradient tape records."""
    return record.stop_recording()


def value_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of this rank's part, for use in a key."""
    return np.asarray(local_array(tensor)).tobytes()
