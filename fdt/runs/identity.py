"""A process by more than its number, which another may get after it: the number and when it was started."""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SPACE = Path("/proc/self/ns/pid")
_STATE, _STARTED = 0, 19  # among the fields of /proc/PID/stat behind the command's name (proc(5) counts from 3)


def space() -> str:
    """In what process numbers mean the same: a boot of a machine, and a container of it. "" where nobody says."""
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink(_SPACE)}"
    except OSError:
        return ""


@dataclass(frozen=True)
class ProcessIdentity:
    """`started`: the machine's boot, and the clock ticks from there to the process's start."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """That of a process that lives now; None where there is none. One that only waits to be reaped does not."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            boot = _BOOT.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return None if fields[_STATE] in "ZX" else cls(pid, f"{boot} {fields[_STARTED]}")

    def alive(self) -> bool:
        return ProcessIdentity.of(self.pid) == self

    def _signal_by_number(self, number: signal.Signals) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process and to no other; to none when it is gone."""
        try:
            process = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        except (AttributeError, OSError):  # conda's Python, an old kernel and some sandboxes have no such thing
            self._signal_by_number(number)
            return
        try:
            if self.alive():  # what the descriptor stands for, then
                signal.pidfd_send_signal(process, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(process)
