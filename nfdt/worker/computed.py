"""Input and output types of a worker's step (nfdt/worker/step.py, nfdt/worker/local_steps.py)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

Tensor = Any
Pulled = Sequence[tuple[list[int], list[Tensor]]]  # by shard: positions in the pull layout, and their tensors


class Computed(NamedTuple):
    """Result of a worker's step, which the worker pushes.

    Attributes:
        gradient: One tensor per trainable variable, in its shape; None where the loss does not depend on it.
        changes: Amounts that the forward pass added to the variables `changed`.
        changed: Positions among the non-trainable variables whose changes are pushed.
        logs: Logs of the training step.
        finite: Whether the gradient is free of NaN and infinity.
    """

    gradient: Sequence[Tensor | None]
    changes: Sequence[Tensor]
    changed: Sequence[int]
    logs: dict[str, Tensor]
    finite: bool
