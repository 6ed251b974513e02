"""Preemption: SIGTERM or SIGUSR1 tells a run that is saved to commit its state and end, so that it can be resumed.

While a `fit` trains, the signal is a request: the ranks commit after one of the next steps, or the epoch ends, within
the grace period. At any other time nothing is trained that is not saved, and the run ends at once.
"""

import _thread
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

from client_shim.stuck import STUCK_S, ended_when_stuck
from fdt.ending import repeated
from fdt.errors import EXIT_RESUME
from fdt.signals import GRACE_S, PREEMPTED_BY, Ended, Preempted, deliver, wake

SAME_S = 1.0  # signals within this time are one: batch systems send one to a process, and its parents pass it on
NO_DIRECTORY = "SIGUSR1 requests a checkpoint, but this run has no --run-dir; it continues"


class Preemption:
    """The preemption of one run.

    Attributes:
        asked: The signal that was received; None before it.
        saved: How far the run is saved.
        grace_s: Seconds from the signal to the end of the run.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.asked: signal.Signals | None = None
        self.saved, self.grace_s = "", grace_s
        self._at = 0.0  # time.monotonic() of the signal
        self._trains = self._expired = self._over = False
        self._ending: Callable[[], Ended] | None = None  # how the run ends, once that is decided

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Within the context, a signal is a request, which `check` answers. At its end it is answered."""
        self.check()
        self._trains = True
        try:
            yield
        finally:
            self._trains = False
        self.check()

    def check(self) -> None:
        """Raise Preempted if a signal was received: all that is trained is saved."""
        if self.asked is not None:
            self._ending = self.error
            raise self.error()

    def end(self) -> None:
        """End: the grace period of a signal that was received has no effect any more."""
        self._over = True

    def error(self) -> Preempted:
        """Return the error that ends the run."""
        assert self.asked is not None
        how = f"saved up to {self.saved}" if self.saved else "not trained yet"
        late = f" within {self.grace_s:g} s no later state was ready;" if self._expired else ""
        return Preempted(self.asked, f"preempted by {self.asked.name}:{late} the run is {how}")

    def handle(self, number: int, _frame: FrameType | None = None) -> None:
        """Handle a signal of PREEMPTED_BY."""
        again, now = repeated(), time.monotonic()
        if self.asked is None:
            self.asked, self._at = signal.Signals(number), now
            _thread.start_new_thread(self._expire, ())  # not threading.Thread, whose locks may be interrupted
            if self._trains:
                wake()
                return
            self._ending = self.error
        elif self._expired and self._ending is None:
            self._ending = self.error
        elif now - self._at < SAME_S and not again:
            return
        elif self._ending is None:
            self._ending = lambda: Ended(signal.SIGTERM)
        deliver(self._ending())

    def _expire(self) -> None:
        time.sleep(self.grace_s)
        if self._ending is None and not self._over:
            self._expired = True
            assert self.asked is not None
            os.kill(os.getpid(), self.asked)  # the script may handle the other one itself

    def stuck(self, number: int) -> None:
        """End the process, whose main thread runs no handler; in a `fit`, only after the grace period."""
        unseen = self.asked is None
        if self._trains and not self._expired:
            if unseen:
                time.sleep(max(0.0, self.grace_s - STUCK_S))
            if self.asked is not None:
                return  # the main thread runs again, or `_expire` sends the signal again
        if unseen:
            self.asked = signal.Signals(number)
        os.write(2, f"{self.error().message}; the script does not react\n".encode())
        os._exit(EXIT_RESUME)


@contextlib.contextmanager
def preemptible(preemption: Preemption | None) -> Iterator[None]:
    """Within the context, SIGTERM and SIGUSR1 preempt the run; with None SIGUSR1 only prints a line."""
    numbers = PREEMPTED_BY if preemption is not None else (signal.SIGUSR1,)
    handler = _note if preemption is None else preemption.handle
    before = {number: signal.getsignal(number) for number in numbers}
    taken = [number for number in numbers if before[number] != signal.SIG_IGN]
    for number in taken:
        signal.signal(number, handler)
    watched = contextlib.nullcontext() if preemption is None else ended_when_stuck(preemption.stuck)
    try:
        with watched:
            yield
    finally:
        if preemption is not None:
            preemption.end()
        for number in taken:
            if signal.getsignal(number) == handler:  # not the script's
                signal.signal(number, before[number])


def _note(number: int, _frame: FrameType | None) -> None:
    os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, f"{NO_DIRECTORY}\n".encode())
