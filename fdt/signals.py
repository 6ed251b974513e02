"""The end of a command by Ctrl-C, SIGTERM or SIGHUP: once, within seconds, with its members.

Python raises a signal handler's exception between any two bytecodes of the main thread. Three things follow.

- In the script's own code, the exception is raised where the signal arrives, as in plain Python. The script's
  `except KeyboardInterrupt` works, and a handler that the script installs is called as in plain Python.
- In this project's code, and in Keras's loop around it, the exception could leave a lock of gRPC locked, because
  `Condition.__exit__` is Python code. The end of the run would then wait for it forever. So `held_back` keeps the
  signal until the code is at a safe point: the end of a wait, which the signal interrupts; a callback of the script
  (`released`); or its own end. Where a library catches the exception in a callback, `released` raises it again.
- In a finalizer, or in a callback of C code, Python drops the exception and calls `sys.unraisablehook`. The exception
  is then raised at the next line of the code that the finalizer interrupted. Where that waits in C, the signal is sent
  again.
- C code may print the exception and go on, by `sys.excepthook`, or make a SystemError of it (`behind`).
- In the import of a C extension, the exception can become an ImportError, which importers catch. So a signal is held
  back until the extension is imported.

Until `ended_by_signals`, SIGINT has the system's default action (hfdt/__main__.py). A shell starts background jobs with
SIGINT ignored. `kill -INT` ends such a command nevertheless.

Batch systems send SIGTERM and SIGUSR1 to every process of a job. The command decides what they mean, so its members are
`shielded` from both.
"""

import _imp
import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ExtensionFileLoader
from types import FrameType, TracebackType
from typing import Any

from fdt.errors import EXIT_RESUME
from fdt.patches import replace

ENDED_BY = (signal.SIGTERM, signal.SIGHUP)
PREEMPTED_BY = (signal.SIGTERM, signal.SIGUSR1)  # sent by batch systems some time before SIGKILL
GRACE_S = 25.0  # from one of them to the end of a run that saves itself: Slurm and Kubernetes kill 30 s after SIGTERM
AGAIN_S = 0.01  # between a dropped exception and its signal's repetition: the next line is usually reached before


class Ended(SystemExit):
    """A signal has ended the run. `message`: a line for the user, or ""."""

    code: int
    message = ""

    def __init__(self, number: int, code: int = 0) -> None:
        super().__init__(code or 128 + number)  # the exit code a shell gives it
        self.number = signal.Signals(number)


class Preempted(Ended):
    """SIGTERM or SIGUSR1 has ended a run that can be resumed."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(number, EXIT_RESUME)
        self.message = message


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within the context, signals raise, so `finally` clauses run, and no signal's exception is lost.

    SIGTERM and SIGHUP raise Ended, SIGINT raises KeyboardInterrupt.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDED_BY)}
    for number in ENDED_BY:
        if before[number] != signal.SIG_IGN:  # nohup
            signal.signal(number, _end)
    if before[signal.SIGINT] in (signal.SIG_DFL, signal.SIG_IGN):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _raised_again(), _held_back_by_extensions():
            yield
    finally:
        _restore(before)


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
        _restore(before)


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
    """Raise the exception of a held signal's handler, if a signal is held."""
    if _holding is not None:
        _holding.raise_held()


def deliver(error: BaseException) -> None:
    """Raise `error`, in a signal handler, as the exceptions of signals that end the command are raised."""
    if _holding is None:
        raise error
    _holding.deliver(lambda: _raise(error))


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
        _restore({number: h for number, h in self._before.items() if signal.getsignal(number) == self._handle})
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
        if _holding is not None:
            _holding.take(lambda: _raise(hidden))
        else:
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


def _end(number: int, _frame: FrameType | None) -> None:
    raise Ended(number)


def _raise(error: BaseException) -> None:
    raise error


_RAISING = (signal.default_int_handler, _end)


_repeated: list[signal.Signals] = []  # sent by this module because the exception of the first was dropped


def repeated() -> bool:
    """Return whether the signal that is being handled is the repetition of one whose exception was dropped."""
    return bool(_repeated) and bool(_repeated.pop())


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:  # None: set by C code, which Python cannot restore
            signal.signal(number, handler)
