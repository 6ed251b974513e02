"""A call of `Session.run`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SessionCall:
    """A call of `Session.run`, the `original`."""

    original: Callable[..., Any]
    session: Any
    options: Any = None
    metadata: Any = None

    def run(self, fetches: Any, feeds: Any) -> Any:
        """Run the session with the script's own options."""
        return self.original(self.session, fetches, feeds, self.options, self.metadata)

    def plainly(self, fetches: Any, feeds: Any = None) -> Any:
        """Run the session without the script's own options."""
        return self.original(self.session, fetches, feeds)
