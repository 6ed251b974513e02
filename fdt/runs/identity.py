"""A process by more than its number, which another may get after it: the number and when it was started."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STATE, _STARTED = 0, 19  # among the fields of /proc/PID/stat behind the command's name (proc(5) counts from 3)


@dataclass(frozen=True)
class Identity:
    """`started`: the machine's boot, and the clock ticks from there to the process's start."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "Identity | None":
        """That of a process that lives now; None where there is none. One that only waits to be reaped does not."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            boot = _BOOT.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return None if fields[_STATE] in "ZX" else cls(pid, f"{boot} {fields[_STARTED]}")

    def alive(self) -> bool:
        return Identity.of(self.pid) == self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process and to no other; to none when it is gone."""
        try:
            process = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive():  # what the descriptor stands for, then
                signal.pidfd_send_signal(process, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(process)
