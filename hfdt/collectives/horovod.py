"""The Comm on Horovod's grouped collectives, whose operations are part of the step's graph and fuse tensors themselves.

Only Horovod's low-level operations are used: its Keras front end does not support Keras 3.
"""

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fdt.errors import UserError
from fdt.ops import nbytes
from fdt.typing import Tensor
from hfdt.collectives.base import by_dtype

ALONE_BYTES = 1 << 20
_KNOWN = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")  # dtypes that Horovod adds


class HorovodComm:
    """The Comm of Horovod's ranks."""

    def __init__(self) -> None:
        # A negotiation waits for the background thread's next cycle, by default 1 ms: longer than a small model's step.
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "0.1")
        # By default Horovod merges buckets that happen to be ready together; how sums round depends on the buffer.
        os.environ.setdefault("HOROVOD_DISABLE_GROUP_FUSION", "1")
        from horovod.tensorflow import mpi_ops

        self._pausable = _starts_again(mpi_ops)
        mpi_ops.init()
        self._ops: Any = mpi_ops
        self.rank: int = mpi_ops.rank()
        self.size: int = mpi_ops.size()

    def pause(self) -> None:
        """Stop Horovod's thread, which takes 0.4 to 0.6 of a core while it negotiates (measured)."""
        if self._pausable:
            with tf.device("CPU:0"):  # elsewhere NCCL would connect the ranks for it
                self.sum([tf.zeros(1)], "pause")  # a shutdown on one rank stops the threads of all
            self._ops.shutdown()

    def resume(self) -> None:
        """Start Horovod's thread: 2 ms (measured)."""
        self._ops.init()

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return by_dtype(tensors, name, self._add)

    def reduce_scatter(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return self._large_alone(tensors, name, self._ops._grouped_reducescatter, op=self._ops.Sum)

    def all_gather(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return self._large_alone(tensors, name, self._ops.grouped_allgather)

    def _add(self, tensors: list[Tensor], name: str) -> list[Tensor]:
        if tensors[0].dtype == tf.bfloat16:
            return self._add_bfloat16(tensors, name)
        return self._grouped(tensors, name, self._ops._grouped_allreduce, op=self._ops.Sum)

    def _large_alone(self, tensors: Sequence[Tensor], name: str, operation: Any, **how: Any) -> list[Tensor]:
        """Make a group of each large tensor.

        Horovod copies the tensors of a larger group into a buffer, and their results out of it. Without the copies,
        reduce_scatter and all_gather of 42 MB take a quarter less CPU time (measured). An all-reduce takes as much.
        """
        found = [tf.convert_to_tensor(t) for t in tensors]
        large = [i for i, t in enumerate(found) if nbytes(t) >= ALONE_BYTES]
        rest = [i for i in range(len(found)) if i not in large]
        for group in [[i] for i in large] + [rest] * bool(rest):
            results = self._grouped([found[i] for i in group], f"{name}.{group[0]}", operation, **how)
            for place, result in zip(group, results, strict=True):
                found[place] = result
        return found

    def _grouped(self, tensors: Sequence[Tensor], name: str, operation: Any, **how: Any) -> list[Tensor]:
        def of_one_dtype(tensors: list[Tensor], name: str) -> Sequence[Tensor]:
            dtype = tensors[0].dtype
            if dtype.is_complex:
                raise UserError(f"Horovod adds no complex numbers; --comm mpi does. Received: {dtype.name}")
            wire = dtype if dtype.name in _KNOWN else tf.int64 if dtype.is_integer else tf.float32
            found = operation([tf.cast(t, wire) for t in tensors], name=name, ignore_name_scope=True, **how)
            return [tf.cast(t, dtype) for t in found]

        return by_dtype(tensors, name, of_one_dtype)

    def _add_bfloat16(self, tensors: list[Tensor], name: str) -> list[Tensor]:
        """Add in float32: each rank adds a part of the elements, which all ranks send it. A ring sends as much."""
        flat = tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)
        count = tf.size(flat)
        flat = tf.pad(flat, [[0, -count % self.size]])
        named = {"ignore_name_scope": True}
        received = self._ops.alltoall(tf.bitcast(flat, tf.uint16), name=f"{name}.parts", **named)
        parts = tf.cast(tf.bitcast(tf.reshape(received, [self.size, -1]), tf.bfloat16), tf.float32)
        total = tf.bitcast(tf.cast(tf.reduce_sum(parts, 0), tf.bfloat16), tf.uint16)
        whole = tf.bitcast(self._ops.allgather(total, name=f"{name}.whole", **named), tf.bfloat16)[:count]
        split = tf.split(whole, [tf.size(t) for t in tensors])
        return [tf.reshape(part, tf.shape(t)) for part, t in zip(split, tensors, strict=True)]


def _starts_again(mpi_ops: Any) -> bool:
    """Return whether Horovod, not started yet, can start more than once: others have initialized its MPI library.

    mpi4py may use another library. A start overwrites the file of Horovod's timeline, and what Horovod has tuned.
    """
    library, found = mpi_ops._basics.MPI_LIB_CTYPES, ctypes.c_int()
    if hasattr(library, "MPI_Initialized"):  # Horovod may be built without MPI
        library.MPI_Initialized(ctypes.byref(found))
    return bool(found.value) and not {"HOROVOD_TIMELINE", "HOROVOD_AUTOTUNE"} & os.environ.keys()
