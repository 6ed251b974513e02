"""A mapped NumPy array as a TensorFlow tensor, without a copy.

A data set lies once in shared memory; were each rank to call `tf.constant` on it, it would lie there once more a rank.
DLPack shares the bytes, but NumPy will not export a read-only array, so the array's address is offered again as if it
could be written. Nothing writes there: TensorFlow reuses an input's buffer only where nobody else holds the tensor, and
the caller holds it for as long as it reads.
"""

from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

from fdt.tensors import Array

ALIGNMENT = 64


class _Writable:
    """Says of an array's memory that it may be written, and keeps it mapped."""

    def __init__(self, array: Array) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def tensor(array: Array) -> Any:
    """`array` as a CPU tensor of the same dtype and shape; strings, and what DLPack does not know, are copied."""
    with tf.device("CPU:0"):
        if array.dtype == ml_dtypes.bfloat16:
            return tf.bitcast(tensor(array.view(np.uint16)), tf.bfloat16)
        if array.dtype.kind not in "biufc" or not array.size or array.ctypes.data % ALIGNMENT:
            return tf.constant(array)
        shared = array if array.flags.writeable else np.asarray(_Writable(array))
        return tf.experimental.dlpack.from_dlpack(shared.__dlpack__())
