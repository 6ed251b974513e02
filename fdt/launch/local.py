"""A launcher of members as plain processes of this machine."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fdt.environment import thread_variables
from fdt.launch import Exit, Task


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

    def stop(self, grace_s: float = 2.0) -> None:
        """Implement Processes."""
        stop_all(self._popens, grace_s)


def spawn(argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start `argv` in a process group of its own, so that the terminal's Ctrl-C reaches the command alone."""
    with open(log, "ab") as out:
        return subprocess.Popen(
            list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )


def stop_all(popens: Sequence[subprocess.Popen[bytes]], grace_s: float) -> None:
    """Send SIGTERM to every process group, and SIGKILL, `grace_s` seconds later, to those that remain."""
    for popen in popens:
        _signal(popen, signal.SIGTERM)
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


def _signal(popen: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(popen.pid, number)
    except ProcessLookupError:
        pass
