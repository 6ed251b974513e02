"""The values that enter a script in rows, of batches and constants: every rank has read all of them, so all are equal.

Ranks divide each batch by positions. Where a script makes other data in each process (a seed of the process's id, an
address, another file), each rank would train on a part of another batch, and all variables would still be equal.
"""

import numpy as np

from client_shim.replica.steps import where
from fdt.errors import WorkerError
from fdt.typing import Tensor
from replica.exchange import GroupedExchange
from replica.placement import PARTIAL
from replica.tensors import is_number, local_array

_SAMPLE = 256  # elements at each end of a tensor
_LARGEST = 1e100  # sums of larger numbers may overflow
_ROUNDING = 1e-4  # relative: processors may round a feature differently

DIFFERENT = (
    "the data that enter the script at {where} must be the same on every rank, as each takes a part of them, but the "
    "values until step {step} differ by {off:.2%}. They depend on something that differs between processes: a seed of "
    "os.getpid(), id() or hash(), or files that hosts do not share; make them depend on a number of the script"
)


class EnteredValues:
    """Sums of values of the tensors that ranks divide, compared with rank 0's at some steps."""

    def __init__(self, exchange: GroupedExchange) -> None:
        self._exchange = exchange
        self._sums = np.zeros(2)  # of the values, and of their absolute values
        self._where = ""  # the line at which the first ones entered

    def add(self, tensor: Tensor) -> None:
        """Add values of a tensor that every rank has whole. Tensors of other devices are left out."""
        dtype = tensor.dtype
        if not is_number(dtype) or dtype.is_complex or not tensor.device.endswith("CPU:0"):
            return
        self._where = self._where or where()
        flat = np.reshape(local_array(tensor), -1)
        ends = np.concatenate([flat[:_SAMPLE], flat[_SAMPLE:][-_SAMPLE:]]).astype(np.float64)
        summed = ends[np.abs(ends) < _LARGEST]
        self._sums += summed.sum(), np.abs(summed).sum()

    def compare(self, step: int) -> None:
        """Compare the sums with rank 0's. A collective.

        Raises:
            WorkerError: On every rank, where they differ by more than rounding.
        """
        first = self._exchange.rank_0s("entered", [self._sums])[0]
        scale = max(float(first[1]), float(self._sums[1])) or 1.0
        off = np.asarray(np.max(np.abs(first - self._sums)) / scale)
        worst = float(self._exchange.replicated("entered", [off], [PARTIAL])[0])
        if not worst <= _ROUNDING:
            raise WorkerError(DIFFERENT.format(where=self._where, step=step, off=worst))
