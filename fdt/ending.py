"""The end of a command by Ctrl-C, SIGTERM or SIGHUP: `ended_by_signals`, within which no signal's exception is lost.

Python loses the exception of a signal's handler (fdt/signals.py) in three places:

- In a finalizer, or in a callback of C code, Python drops it and calls `sys.unraisablehook`. The exception is then
  raised at the next line of the code that the finalizer interrupted. Where that waits in C, the signal is sent again.
- C code may print it and go on, by `sys.excepthook`, or make a SystemError of it (`behind`).
- In the import of a C extension it can become an ImportError, which importers catch. So a signal is held back until
  the extension is imported.
"""

import _imp
import _thread
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from types import FrameType, TracebackType
from typing import Any

from fdt.patches import replace
from fdt.signals import ENDED_BY, Ended, end, held_back, hold, restore

AGAIN_S = 0.01  # between a dropped exception and its signal's repetition: the next line is usually reached before


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within the context, signals raise, so `finally` clauses run, and no signal's exception is lost.

    SIGTERM and SIGHUP raise Ended, SIGINT raises KeyboardInterrupt.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDED_BY)}
    for number in ENDED_BY:
        if before[number] != signal.SIG_IGN:  # nohup
            signal.signal(number, end)
    if before[signal.SIGINT] in (signal.SIG_DFL, signal.SIG_IGN):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _raised_again(), _held_back_by_extensions():
            yield
    finally:
        restore(before)


@contextlib.contextmanager
def _raised_again() -> Iterator[None]:
    """Within the context, a signal whose exception Python drops, or C code prints, raises again."""
    before, printing = sys.unraisablehook, sys.excepthook
    active = [True]

    def dropped(lost: "sys.UnraisableHookArgs") -> None:
        if not again(lost.exc_value, sys._getframe().f_back):
            before(lost)

    def printed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not again(error, sys._getframe().f_back):
            printing(kind, error, trace)

    def again(error: BaseException | None, frame: FrameType | None) -> bool:
        hidden = behind(error)
        if not active or hidden is None:
            return False
        number = hidden.number if isinstance(hidden, Ended) else signal.SIGINT
        if not hold(hidden):
            due = [number]
            _raise_at_next_line(due, frame)
            _thread.start_new_thread(send, (due,))  # not threading.Thread, whose locks may be interrupted
        return True

    def send(due: list[signal.Signals]) -> None:
        time.sleep(AGAIN_S)
        if due and active:
            _repeated.append(due[0])
            os.kill(os.getpid(), due.pop())

    sys.unraisablehook, sys.excepthook = dropped, printed
    try:
        yield
    finally:
        active.clear()
        if sys.unraisablehook is dropped:  # not the script's
            sys.unraisablehook = before
        if sys.excepthook is printed:
            sys.excepthook = printing


def behind(error: BaseException | None) -> "KeyboardInterrupt | Ended | None":
    """Return the signal's exception that `error` is or hides; None if there is no signal behind it.

    C code may call Python while the exception is pending, which makes a SystemError of it. Where the call was an
    import, the import lock stays locked. It is released here, as other threads would wait for it for ever.
    """
    if isinstance(error, SystemError) and isinstance(error.__cause__, (KeyboardInterrupt, Ended)):
        with contextlib.suppress(RuntimeError):  # another thread holds it
            while _imp.lock_held():
                _imp.release_lock()
        return error.__cause__
    return error if isinstance(error, (KeyboardInterrupt, Ended)) else None


def _raise_at_next_line(due: list[signal.Signals], frame: FrameType | None) -> None:
    """Call the handler of the signal in `due` at the next line of `frame`, unless `due` is empty by then."""
    before = sys.gettrace()

    def trace(*_: Any) -> None:
        sys.settrace(before)
        if due:
            _repeated.append(due[0])
            signal.raise_signal(due.pop())

    if frame is not None:
        frame.f_trace = trace
        sys.settrace(lambda *_: None)  # Python calls `f_trace` only while a function is set


@contextlib.contextmanager
def _held_back_by_extensions() -> Iterator[None]:
    """Within the context, C extensions are imported in `held_back`."""
    with contextlib.ExitStack() as stack:
        for name in ("create_module", "exec_module"):
            replace(stack, ExtensionFileLoader, name, held_back()(getattr(ExtensionFileLoader, name)))
        yield


_repeated: list[signal.Signals] = []  # sent by this module because the exception of the first was dropped


def repeated() -> bool:
    """Return whether the signal that is being handled is the repetition of one whose exception was dropped."""
    return bool(_repeated) and bool(_repeated.pop())
