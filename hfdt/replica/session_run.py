"""A training run of a session, while it lasts."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hfdt.replica.session_trials import Recorded

Share = tuple[int, int]  # samples of this rank, samples of the batch


@dataclass
class SessionRun:
    """The training run at hand. `order`: numbers of gradients that are still to be added, one after another: rank 0
    hears one exchange at a time. In a trial they are not added: they are `recorded`, and `instead`, where there is
    one, is gone on with."""

    share: Share
    order: list[int]
    recorded: dict[int, Sequence[Any]] | None = None
    instead: Recorded | None = None
    failure: Exception | None = None
    turn: threading.Condition = field(default_factory=threading.Condition)
