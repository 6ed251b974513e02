"""A call of a session's `run`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SessionCall:
    """`original`: Session.run. The script's own options go with `run`, not with `plainly`."""

    original: Callable[..., Any]
    session: Any
    options: Any = None
    metadata: Any = None

    def run(self, fetches: Any, feeds: Any) -> Any:
        return self.original(self.session, fetches, feeds, self.options, self.metadata)

    def plainly(self, fetches: Any, feeds: Any = None) -> Any:
        return self.original(self.session, fetches, feeds)
