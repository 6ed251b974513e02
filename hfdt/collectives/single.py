"""The Comm of one rank: for runs with one worker, and where a global batch is computed alone (exactness/probe.py)."""

from collections.abc import Sequence

import tensorflow as tf

from hfdt.collectives.base import Tensor


class SoloComm:
    """A process group of one rank."""

    rank, size = 0, 1

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        return [tf.convert_to_tensor(t) for t in tensors]
