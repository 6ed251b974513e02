"""Ended by a signal, a run still ends its members."""

import contextlib
import signal
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

ENDED_BY = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, with the exit code a shell gives them, so that `finally` clauses run."""
    before = {number: signal.getsignal(number) for number in ENDED_BY}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # nohup
            signal.signal(number, _end)
    try:
        yield
    finally:
        _restore(before)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """While members are ended, which takes 5 s at most, a second Ctrl-C changes nothing."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *ENDED_BY)}
    try:
        yield
    finally:
        _restore(before)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:  # None: set by C, out of Python's reach
            signal.signal(number, handler)
