"""Whose turn it is: callers wait for one thing and get it in the order in which they came."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

POLL_S = 0.2


class FairQueue:
    """Thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[object] = deque()  # the first of them has its turn
        self._changed = threading.Condition()

    @property
    def taken(self) -> bool:
        """Would a caller have to wait?"""
        return bool(self._waiting)

    @contextlib.contextmanager
    def turn(self, wanted: Callable[[], bool]) -> Iterator[bool]:
        """Wait, as long as `wanted` says so, which is asked a few times a second. False: it gave up."""
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
