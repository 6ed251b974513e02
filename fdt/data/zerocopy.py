"""Conversion of a mapped NumPy array to a TensorFlow tensor without a copy.

Shared memory holds a data set once; `tf.constant` would add a copy for each rank. DLPack shares the bytes, but NumPy
does not export a read-only array, so the array's memory is declared writable. No code writes to it: TensorFlow reuses
an input's buffer only where nothing else references the tensor, and the caller references it while it reads.
"""

from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

from fdt.tensors import Array

ALIGNMENT = 64


class _Writable:
    """Declares an array's memory writable, and keeps it mapped."""

    def __init__(self, array: Array) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def tensor(array: Array) -> Any:
    """Return `array` as a CPU tensor of the same dtype and shape.

    Strings, empty or unaligned arrays, and dtypes that DLPack does not support are copied.
    """
    with tf.device("CPU:0"):
        if array.dtype == ml_dtypes.bfloat16:
            return tf.bitcast(tensor(array.view(np.uint16)), tf.bfloat16)
        if array.dtype.kind not in "biufc" or not array.size or array.ctypes.data % ALIGNMENT:
            return tf.constant(array)
        shared = array if array.flags.writeable else np.asarray(_Writable(array))
        return tf.experimental.dlpack.from_dlpack(shared.__dlpack__())
