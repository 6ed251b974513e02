"""Starting and ending the processes that are an engine's members."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Task:
    """`count` processes running `argv`, ranks 0 to count-1 of `role`."""

    role: str
    argv: Sequence[str]
    count: int
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Exit:
    """A member's process that ended. `rank` is None where the launcher cannot tell whose it was."""

    role: str
    rank: int | None
    cause: str  # "exit code 3" | "signal 9 (SIGKILL)" | the launcher's own words


class Processes(Protocol):
    """A task that runs."""

    def exits(self) -> list[Exit]:
        """Those that have ended so far."""
        ...

    def stop(self, grace_s: float = 2.0) -> None:
        """Ask, wait up to `grace_s`, then kill. Nothing is left running. Stopping twice is fine."""
        ...


@runtime_checkable
class Restartable(Processes, Protocol):
    """A task whose processes can be replaced one by one."""

    def restart(self, rank: int) -> None:
        """End what is left of `rank`'s process and start another in its place."""
        ...


class Launcher(Protocol):
    def start(self, task: Task) -> Processes:
        """Raises UserError when the task cannot be started here."""
        ...
