"""Checks before training that all ranks read the same data."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.data import first_batch_checksum
from fdt.errors import CaptureError
from hfdt.collectives import Comm


def same_everywhere(comm: Comm, sources: Sequence[Any]) -> None:
    """Compare the ranks' first batches. Raises CaptureError where a pipeline gives ranks different batches."""
    if not sources:
        return
    mine = [int(first_batch_checksum(source), 16) >> 1 for source in sources]
    place = tf.one_hot(comm.rank, comm.size, dtype=tf.int64)
    sums = comm.sum([tf.constant(mine, tf.int64)[:, None] * place[None, :]], "hfdt.checksum")[0].numpy()
    different = np.any(sums != sums[:, :1], axis=0)
    if different.any():
        raise CaptureError(
            "every rank must read the same batches from the script's data, but "
            f"rank {int(np.argmax(different))}'s first batch differs from rank 0's. "
            "Give shuffles and random maps a seed"
        )


def may_idle(source: Any, size: int) -> bool:
    """Return whether a global batch may have fewer samples than there are ranks."""
    rows, batch = source.samples, source.batch_size
    if rows is None or batch is None:
        return True
    return bool(batch < size or 0 < rows % batch < size)
