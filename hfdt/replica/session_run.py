"""The state of a session's training run while it lasts."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hfdt.replica.session_trials import Recorded

Share = tuple[int, int]  # samples of this rank, samples of the batch


@dataclass
class SessionRun:
    """The current training run.

    `order`: numbers of the gradients that are still to be added, one after another, since rank 0 handles one exchange
    at a time. In a trial gradients are not added but `recorded`, and replaced by those of `instead` where it is set.
    """

    share: Share
    order: list[int]
    recorded: dict[int, Sequence[Any]] | None = None
    instead: Recorded | None = None
    failure: Exception | None = None
    turn: threading.Condition = field(default_factory=threading.Condition)
