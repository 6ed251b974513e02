"""What a worker's step takes and gives, whichever it is (step.py, nfdt/worker/local_steps.py)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

Tensor = Any
Pulled = Sequence[tuple[list[int], list[Tensor]]]  # by shard: places in the pull layout, and what came there


class Computed(NamedTuple):
    """A worker's push: a gradient by trainable variable, what the forward pass added to which of `carried_others`."""

    gradient: Sequence[Tensor | None]
    changes: Sequence[Tensor]
    changed: Sequence[int]
    logs: dict[str, Tensor]
    finite: bool
