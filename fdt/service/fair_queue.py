"""A first-come, first-served lock for callers that may give up waiting."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

POLL_S = 0.2


class FairQueue:
    """A queue of callers, of which the first has the turn. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[object] = deque()  # the first caller has the turn
        self._changed = threading.Condition()

    @property
    def taken(self) -> bool:
        """Whether a caller would have to wait."""
        return bool(self._waiting)

    @contextlib.contextmanager
    def turn(self, wanted: Callable[[], bool]) -> Iterator[bool]:
        """Wait for the turn and keep it within the context.

        Args:
            wanted: Called a few times a second; the caller gives up when it returns False.

        Yields:
            Whether the caller has the turn; False: it gave up.
        """
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
        try:
            yield self._come(ticket, wanted) and wanted()
        finally:
            with self._changed:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def _come(self, ticket: object, wanted: Callable[[], bool]) -> bool:
        with self._changed:
            while self._waiting[0] is not ticket:
                if not wanted():
                    return False
                self._changed.wait(POLL_S)
            return True
