"""Signals that end a command (Ctrl-C, SIGTERM, SIGHUP): it ends once, within seconds, and its members end with it.

Python raises a signal handler's exception between any two bytecodes of the main thread. Three things follow.

- In the script's own code, the exception is raised where the signal arrives, as in plain Python. The script's
  `except KeyboardInterrupt` works, and a handler that the script installs is called as in plain Python.
- In this project's code, and in Keras's loop around it, the exception could leave a lock of gRPC locked, because
  `Condition.__exit__` is Python code. The end of the run would then wait for it forever. So `held_back` keeps the
  signal until the code is at a safe point: the end of a wait, which the signal interrupts; a callback of the script
  (`released`); or its own end. Where a library catches the exception in a callback, `released` raises it again.
- In a finalizer, in a callback of C code and in the import of a C extension, Python loses the exception. In
  `ended_by_signals` it is raised again (fdt/ending.py).

Until `ended_by_signals`, SIGINT has the system's default action (hfdt/__main__.py). A shell starts background jobs with
SIGINT ignored. `kill -INT` ends such a command nevertheless.

Batch systems send SIGTERM and SIGUSR1 to every process of a job. The command decides what they mean, so its members are
`shielded` from both. `python -m fdt.signals COMMAND [ARGUMENT...]` runs a command that is.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from fdt.errors import EXIT_RESUME

ENDED_BY = (signal.SIGTERM, signal.SIGHUP)
PREEMPTED_BY = (signal.SIGTERM, signal.SIGUSR1)  # sent by batch systems some time before SIGKILL
GRACE_S = 25.0  # from one of them to the end of a run that saves itself: Slurm and Kubernetes kill 30 s after SIGTERM


class Ended(SystemExit):
    """A signal has ended the run. `message`: a line for the user, or ""."""

    code: int
    message = ""

    def __init__(self, number: int, code: int = 0) -> None:
        super().__init__(code or 128 + number)  # the exit code a shell gives it
        self.number = signal.Signals(number)
        self.args = (number,)  # SimPy makes an exception again of its type and its arguments

    def __str__(self) -> str:
        return str(self.code)


class Preempted(Ended):
    """SIGTERM or SIGUSR1 has ended a run that can be resumed."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(number, EXIT_RESUME)
        self.message, self.args = message, (number, message)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore a second Ctrl-C while members are ended, which takes 5 s at most. In other threads there is none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = {signal.SIGINT, *ENDED_BY, *PREEMPTED_BY}
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        restore(before)


@contextlib.contextmanager
def held_back(wake: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Within the context, an ending signal raises only in `raise_held`, in `released` and at the end of the context.

    A signal whose handler is the script's own is not held back. Outside of the main thread this has no effect. Of
    nested contexts the outermost raises, or the outermost in `released`.

    Args:
        wake: Ends a wait of the main thread. It is called in a signal handler: it must not take a lock.
    """
    global _holding
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _holding is not None:
        with _holding.again():
            yield
        return
    _holding = _Holding(wake)
    try:
        yield
    finally:
        ended, _holding = _holding, None
        ended.end()


@contextlib.contextmanager
def released() -> Iterator[None]:
    """Within the context, inside of `held_back`, signals raise where they arrive: the code is the script's."""
    holding = _holding
    if holding is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before, holding.holds = holding.holds, False
    try:
        holding.raise_held()
        yield
        holding.raise_swallowed()
    finally:
        holding.holds = before


def raise_held() -> None:
    """Raise the exception of a held signal's handler, if a signal is held and this is the main thread."""
    if _holding is not None and threading.current_thread() is threading.main_thread():
        _holding.raise_held()


def deliver(error: BaseException) -> None:
    """Raise `error`, in a signal handler, as the exceptions of signals that end the command are raised."""
    if _holding is None:
        raise error
    _holding.deliver(lambda: _raise(error))


def hold(error: BaseException) -> bool:
    """Raise `error`, which Python has lost, at the next safe point of `held_back`. Return False outside of it."""
    if _holding is None:
        return False
    _holding.take(lambda: _raise(error))
    return True


def wake() -> None:
    """End a wait of the main thread in `held_back`. A signal handler may call this."""
    if _holding is not None:
        _holding.wake()


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Within the context, processes that this thread starts begin with SIGTERM and SIGUSR1 blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PREEMPTED_BY)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Holding:
    """Replaces the signal handlers that raise."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.holds = True
        self.wake = wake
        self._held: Callable[[], object] | None = None  # raises the exception of the signal that is held back
        self._raised: tuple[Callable[[], object], BaseException] | None = None  # the last that was not held back
        self._before = {n: h for n in (signal.SIGINT, *ENDED_BY) if (h := signal.getsignal(n)) in _RAISING}
        for number in self._before:
            signal.signal(number, self._handle)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Hold back within the context, and raise at its end where signals are released."""
        before, self.holds = self.holds, True
        try:
            yield
        finally:
            self.holds = before
            if not before:
                self.raise_held()

    def raise_held(self) -> None:
        if self._held is not None:
            act, self._held = self._held, None
            act()

    def raise_swallowed(self) -> None:
        """Do as `raise_held`; also raise an exception that a library has caught, as Keras's `pythonify_logs` does."""
        from fdt.service.blame import is_scripts  # imports protobuf, which a command that only prints does not need

        raised, self._raised = self._raised, None
        if raised is not None:
            act, error = raised
            caught = error.__traceback__
            if caught is not None and not is_scripts(caught.tb_frame):
                self._held = act
        self.raise_held()

    def end(self) -> None:
        """Restore the handlers, except those that the script has replaced meanwhile."""
        restore({number: h for number, h in self._before.items() if signal.getsignal(number) == self._handle})
        self.raise_held()

    def take(self, act: Callable[[], object]) -> None:
        self._held = act
        self.wake()

    def deliver(self, act: Callable[[], object]) -> None:
        """Call `act`, which raises: now in the script's code, otherwise at the next safe point."""
        if self.holds:
            return self.take(act)
        try:
            act()
        except BaseException as error:
            self._raised = act, error
            raise

    def _handle(self, number: int, frame: FrameType | None) -> None:
        handler = self._before[signal.Signals(number)]
        self.deliver(lambda: handler(number, frame))


_holding: _Holding | None = None


def end(number: int, _frame: FrameType | None) -> None:
    """Handle a signal of ENDED_BY. Raises Ended."""
    raise Ended(number)


def _raise(error: BaseException) -> None:
    raise error


_RAISING = (signal.default_int_handler, end)


def restore(handlers: Mapping[signal.Signals, Any]) -> None:
    """Set the handlers of signals, except those that C code had set."""
    for number, handler in handlers.items():
        if handler is not None:  # None: set by C code, which Python cannot restore
            signal.signal(number, handler)


if __name__ == "__main__":
    with shielded():
        os.execvp(sys.argv[1], sys.argv[1:])
