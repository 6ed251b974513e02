"""Launchers, which start and end an engine's worker and server processes; here the launcher for this machine."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from fdt.environment import thread_variables
from fdt.security import without_links
from fdt.signals import shielded

GRACE_S = 2.0  # from the request to end to SIGKILL


@dataclass(frozen=True)
class Task:
    """`count` processes that run `argv`, with ranks 0 to count-1 of `role`. `env`: further environment variables."""

    role: str
    argv: Sequence[str]
    count: int
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Exit:
    """A member's process that ended. `rank` is None where the launcher cannot determine it."""

    role: str
    rank: int | None
    cause: str  # "exit code 3" | "signal 9 (SIGKILL)" | the launcher's message


class Processes(Protocol):
    """The processes of a started task."""

    def exits(self) -> list[Exit]:
        """Return the processes that have ended so far."""

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ask for the end, wait up to `grace_s` seconds, then kill all that still run. A second call has no effect."""


@runtime_checkable
class Restartable(Processes, Protocol):
    """A started task whose processes can be replaced one by one."""

    def restart(self, rank: int) -> None:
        """End `rank`'s process if it still runs, and start a new one. Raises UserError when none can be started."""


@runtime_checkable
class Explained(Processes, Protocol):
    """A started task whose launcher prints why a process failed."""

    def reason(self) -> str:
        """Return the first reason that was printed so far, as one line; "" where there is none."""


class Launcher(Protocol):
    """Starts tasks by one mechanism: local processes, mpirun, ssh, emulated hosts."""

    def start(self, task: Task) -> Processes:
        """Start a task's processes. Raises UserError when the task cannot be started here."""


class LocalLauncher:
    """Starts one process for each rank. Its output goes to `run_dir` until it attaches, then to its log."""

    def __init__(self, run_dir: Path, rank_env: Callable[[int], Mapping[str, str]] | None = None) -> None:
        self._run_dir = run_dir
        self._rank_env = rank_env or (lambda rank: {})

    def start(self, task: Task) -> "LocalProcesses":
        """Implement Launcher."""
        return LocalProcesses(task.role, task.count, lambda rank: self._spawn(task, rank))

    def _spawn(self, task: Task, rank: int) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            **thread_variables(task.count),
            **task.env,
            "FDT_RANK": str(rank),
            "FDT_LOCAL_RANK": str(rank),
            "FDT_LOCAL_SIZE": str(task.count),
            **self._rank_env(rank),
        }
        return spawn(task.argv, env, self._run_dir / f"{task.role}-{rank}.log")


class LocalProcesses:
    """The processes of a task on this machine, one Popen for each rank."""

    def __init__(self, role: str, count: int, spawn_rank: Callable[[int], subprocess.Popen[bytes]]) -> None:
        self._role, self._spawn = role, spawn_rank
        self._popens = [spawn_rank(rank) for rank in range(count)]

    def exits(self) -> list[Exit]:
        """Implement Processes."""
        codes = [(rank, popen.poll()) for rank, popen in enumerate(self._popens)]
        return [Exit(self._role, rank, describe(code)) for rank, code in codes if code is not None]

    def restart(self, rank: int) -> None:
        """Implement Restartable."""
        stop_all([self._popens[rank]], 0.0)
        self._popens[rank] = self._spawn(rank)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Implement Processes."""
        stop_all(self._popens, grace_s)


def spawn(argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start `argv` in a process group of its own, so that the terminal's Ctrl-C reaches the command alone.

    It is `shielded` from a batch system's signals: STOP is the signal that ends it.
    """
    with open(log, "ab", opener=without_links) as out, shielded():
        return subprocess.Popen(
            list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )


STOP = signal.SIGUSR2  # its default action ends a process


def stop_all(popens: Sequence[subprocess.Popen[bytes]], grace_s: float, number: int = STOP) -> None:
    """Send the signal to every process group, and SIGKILL, `grace_s` seconds later, to those that remain."""
    for popen in popens:
        _signal(popen, number)
    deadline = time.monotonic() + grace_s
    for popen in popens:
        try:
            popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
    for popen in popens:
        _signal(popen, signal.SIGKILL)
        popen.wait()


def describe(code: int) -> str:
    """Describe a Popen's return code: "exit code 3", "signal 9 (SIGKILL)"."""
    if code >= 0:
        return f"exit code {code}"
    return f"signal {-code} ({signal.Signals(-code).name})"


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name, its state first; none where there is no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return []


def _signal(popen: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(popen.pid, number)
    except ProcessLookupError:
        pass
