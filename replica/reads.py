"""Python's reads of a placed tensor: the global shape, length and values, never the rank's part."""

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.compat.tensorflow import pywrap_tfe
from fdt.patches import Patch
from replica.convert import Converter
from replica.tensors import EagerTensor, local_array, local_shape_of

_AS_BUFFER = 160  # offset of tp_as_buffer in PyTypeObject, CPython 3.10 to 3.14 on 64 bits
_GET = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)


@contextlib.contextmanager
def global_reads(converter: Converter) -> Iterator[None]:
    """Let every way in which Python reads an eager tensor return the global one, while the context lasts."""
    with contextlib.ExitStack() as stack:
        for name, value in _methods(converter).items():
            stack.callback(setattr, EagerTensor, name, getattr(EagerTensor, name))
            setattr(EagerTensor, name, value)
        stack.enter_context(_buffers(converter))
        yield


def patches(converter: Converter) -> list[Patch]:
    """Return the replacements of functions that are called rarely."""
    base = EagerTensor.__mro__[1]

    def of_whole(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return original(converter.whole(tensor), *args, **kwargs)

    copies = [Patch(base, name, of_whole) for name in ("_copy_nograd", "__dlpack__")]
    return [*copies, Patch(pywrap_tfe, "TFE_ToDlpackCapsule", of_whole)]


def _methods(converter: Converter) -> dict[str, Callable[..., Any]]:
    shape_tuple, numpy, elements = local_shape_of, local_array, EagerTensor._num_elements

    def _shape_tuple(tensor: Any) -> Any:
        return shape_tuple(tensor) if tensor._placement is None else tensor._global_shape

    def _numpy_internal(tensor: Any) -> Any:
        return numpy(tensor) if tensor._placement is None else numpy(converter.whole(tensor))

    def _num_elements(tensor: Any) -> Any:
        return elements(tensor) if tensor._placement is None else int(np.prod(tensor._global_shape))

    return {"_shape_tuple": _shape_tuple, "_numpy_internal": _numpy_internal, "_num_elements": _num_elements}


@contextlib.contextmanager
def _buffers(converter: Converter) -> Iterator[None]:
    """Replace the buffer protocol, by which `np.asarray(t)` reads a tensor's memory, to give the global array's.

    Raises:
        RuntimeError: This Python does not let the protocol be replaced.
    """
    procs = ctypes.c_void_p.from_address(id(EagerTensor) + _AS_BUFFER).value
    if sys.maxsize < 2**32 or not procs:
        raise RuntimeError("this Python does not let tensors' buffers be guarded; use CPython 3.10 to 3.14, 64 bits")
    slot = ctypes.c_void_p.from_address(procs)
    before = slot.value
    own = _GET(before or 0)
    get_buffer = ctypes.pythonapi.PyObject_GetBuffer
    get_buffer.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)

    def get(tensor: Any, view: Any, flags: int) -> int:
        if tensor._placement is None:
            return int(own(tensor, view, flags))
        return int(get_buffer(np.asarray(local_array(converter.whole(tensor))), view, flags))

    replacement = _GET(get)
    slot.value = ctypes.cast(replacement, ctypes.c_void_p).value
    try:
        _verify_buffers(converter)
        yield
    finally:
        slot.value = before


def _verify_buffers(converter: Converter) -> None:
    """Raise RuntimeError unless the replacement works here."""
    whole, local = tf.constant([1.0, 2.0]), tf.constant([0.0])
    local._placement, local._replicated, local._global_shape = converter, whole, (2,)
    if np.asarray(local).tolist() != [1.0, 2.0]:
        raise RuntimeError("this Python does not let tensors' buffers be guarded; use CPython 3.10 to 3.14, 64 bits")
