"""The end of a command whose main thread does not return from C++, where Python runs no signal handler.

The C handler of a signal writes to a pipe at once, whatever the main thread does. A thread reads it. If the main thread
has not moved from its instruction for some seconds, that thread ends the process: the other ranks and the shm reaper
notice, and remove what is left.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from fdt.signals import ENDED_BY, PREEMPTED_BY

OURS = ("fdt.signals", "client_shim.preemption")  # modules of handlers; all others are the script's
STUCK_S = 3.5  # a command ends within 5 s
POLL_S = 0.1


@contextlib.contextmanager
def ended_when_stuck(end: Callable[[int], object], within_s: float = STUCK_S) -> Iterator[None]:
    """Within the context, signals that end the command do so also while the main thread is in C++.

    A signal whose handler is the script's own is left to the script.

    Args:
        end: Ends the process; receives the signal. It runs in another thread.
        within_s: Seconds for which the main thread may stay at one instruction.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reads, writes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(reads, True)
    numbers = {*ENDED_BY, *PREEMPTED_BY}
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)

    def watch() -> None:
        while arrived := os.read(reads, 1):
            number = arrived[0]
            ours = number in numbers and getattr(signal.getsignal(number), "__module__", "") in OURS
            if ours and _stays(within_s):
                end(number)
        os.close(reads)

    threading.Thread(target=watch, name="stuck", daemon=True).start()
    try:
        yield
    finally:
        used = signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        if used != writes:
            signal.set_wakeup_fd(used)  # the script's own
        os.close(writes)


def _stays(within_s: float) -> bool:
    """Return whether the main thread executes no Python for so many seconds."""
    deadline, at = time.monotonic() + within_s, _instruction()
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        if _instruction() != at:
            return False
    return True


def _instruction() -> tuple[int, int]:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return id(frame), frame.f_lasti
