"""The identity of a process: its number and its start time, as a later process may get the same number."""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SPACE = Path("/proc/self/ns/pid")
_STATE, _STARTED = 0, 19  # fields of /proc/PID/stat after the command's name (proc(5) counts from 3)


def space() -> str:
    """Return the scope of process numbers: a boot of a machine, and a container on it. "" where it is unknown."""
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink(_SPACE)}"
    except OSError:
        return ""


@dataclass(frozen=True)
class ProcessIdentity:
    """A process. `started`: the machine's boot, and the clock ticks from there to the process's start."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """Return the identity of a running process; None where there is none, or only a zombie."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            boot = _BOOT.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return None if fields[_STATE] in "ZX" else cls(pid, f"{boot} {fields[_STARTED]}")

    def alive(self) -> bool:
        """Return whether the process still runs."""
        return ProcessIdentity.of(self.pid) == self

    def _signal_by_number(self, number: signal.Signals) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process and to no other; do nothing when it has ended."""
        try:
            process = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        except (AttributeError, OSError):  # conda's Python, an old kernel and some sandboxes have no pidfd_open
            self._signal_by_number(number)
            return
        try:
            if self.alive():  # then the descriptor is this process's
                signal.pidfd_send_signal(process, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(process)
