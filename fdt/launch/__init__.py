"""Launchers: start and end the worker and server processes that are an engine's members."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


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
        ...

    def stop(self, grace_s: float = 2.0) -> None:
        """Send SIGTERM, wait up to `grace_s` seconds, then kill all that still run. A second call has no effect."""
        ...


@runtime_checkable
class Restartable(Processes, Protocol):
    """A started task whose processes can be replaced one by one."""

    def restart(self, rank: int) -> None:
        """End `rank`'s process if it still runs, and start a new one. Raises UserError when none can be started."""
        ...


class Launcher(Protocol):
    """Starts tasks by one mechanism: local processes, mpirun, ssh, emulated hosts."""

    def start(self, task: Task) -> Processes:
        """Start a task's processes. Raises UserError when the task cannot be started here."""
        ...
