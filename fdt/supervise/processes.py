"""An engine's processes: those that its launchers started, and elastic workers, which join by themselves.

Launched processes are started and stopped together, and restarted singly where possible. Each process's exit is
reported until it is marked as handled. Elastic workers join by `nfdt join` and may leave again.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fdt import environment
from fdt.launch import GRACE_S, Exit, Explained, Launcher, Processes, Restartable, Task
from fdt.service.member import SIZE_VARIABLE
from fdt.signals import held_back
from fdt.supervise import Outcome

CUT_OFF_GRACE_S = 0.5  # in place of GRACE_S where a host is cut off


class LaunchedProcesses:
    """The launched processes of one engine.

    Args:
        launches: The tasks to start, each with its launcher.
        env: Variables for all processes, besides those of their tasks.
    """

    def __init__(self, launches: Sequence[tuple[Launcher, Task]], env: Mapping[str, str]) -> None:
        self._launches, self._env = launches, env
        self._workers = 0  # how many, where other than the task asks for; else 0
        self._running: list[Processes] = []
        self._lost: set[tuple[str, int]] = set()  # (role, rank) of exits that have been handled
        self._stopping = threading.Lock()
        self._cut_off: set[tuple[str, int | None]] = set()  # by role and rank; mpirun and ssh wait for their hosts

    def __bool__(self) -> bool:
        return bool(self._running)

    def complete(self, workers: int = 0) -> bool:
        """Return whether so many workers, as `resize` counts them, were started and no process has ended."""
        return self._workers == workers and not self.exits()

    @property
    def counts(self) -> dict[str, int]:
        """The number of processes of each role."""
        return {task.role: self._count(task) for _, task in self._launches}

    def resize(self, workers: int = 0) -> None:
        """Set the number of workers that `start` starts; 0: as many as the task asks for."""
        self._workers = workers

    @held_back()  # otherwise a process that is just started could not be ended
    def start(self) -> None:
        """Start the processes. Raises UserError where a task cannot be started. Others may run then, until `stop`."""
        self._lost.clear()
        self._cut_off.clear()
        for launcher, task in self._launches:
            self._running.append(launcher.start(self._prepared(task)))

    def stop(self) -> None:
        """End all tasks' processes at once, within seconds. A second caller waits until the first has ended them."""
        with self._stopping:
            stopping, self._running = self._running, []
            grace_s = CUT_OFF_GRACE_S if self._cut_off else GRACE_S
            with ThreadPoolExecutor(max(1, len(stopping))) as pool:
                list(pool.map(lambda running: running.stop(grace_s), stopping))

    def restartable(self, role: str) -> list[Restartable]:
        """Return the tasks of `role` whose processes can be restarted singly."""
        pairs = zip(self._launches, self._running, strict=True)
        return [running for (_, task), running in pairs if task.role == role and isinstance(running, Restartable)]

    def restart(self, role: str, rank: int) -> None:
        """Replace one process."""
        for running in self.restartable(role):
            running.restart(rank)
            self._lost.discard((role, rank))
            self._cut_off.discard((role, rank))

    def mark_handled(self, role: str, rank: int) -> None:
        """Mark this process's exit as handled."""
        self._lost.add((role, rank))

    def mark_cut_off(self, role: str, rank: int | None) -> None:
        """Give the processes less time to end, until this one is replaced: mpirun and ssh wait for its host."""
        self._cut_off.add((role, rank))

    def exits(self) -> list[Exit]:
        return [exit_ for running in self._running for exit_ in running.exits()]

    def unhandled_exits(self) -> list[Exit]:
        """Return the exits that are not marked as handled."""
        return [e for e in self.exits() if e.rank is None or (e.role, e.rank) not in self._lost]

    def reason(self) -> str:
        """Return the first reason for a failure that a launcher has printed; "" where there is none."""
        return next(filter(None, (each.reason() for each in self._running if isinstance(each, Explained))), "")

    def _count(self, task: Task) -> int:
        return self._workers if self._workers and task.role == "worker" else task.count

    def _prepared(self, task: Task) -> Task:
        env = {**environment.variables(), SIZE_VARIABLE: str(self._count(task)), **self._env, **task.env}
        return Task(task.role, task.argv, self._count(task), env)


MOST = 256  # at once


@dataclass(frozen=True)
class WorkerJoined:
    """An elastic worker has attached and can be given the job."""


@dataclass(frozen=True)
class WorkerLeft:
    """An elastic worker has ended, or was asked to end."""

    how: str  # "left" | "lost" | "failed"
    why: str = ""


@runtime_checkable
class ElasticCoordinator(Protocol):
    """A Coordinator that accepts elastic workers. Their ranks follow those of the workers that the job began with."""

    def joined(self, rank: int, host: str) -> Outcome:
        """Give the worker the job, unless it has it already."""

    def left(self, rank: int, how: str, why: str = "") -> Outcome:
        """Take the worker out of the job; `how` and `why` as in WorkerLeft."""


class ElasticWorkers:
    """Ranks of elastic workers, grouped by joint arrival. A group's event asks it to leave. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[int, threading.Event] = {}  # by rank

    def reserve(self, count: int, first: int) -> tuple[list[int], threading.Event]:
        """Return `count` free ranks, `first` or higher, and their group's event.

        Raises:
            ValueError: There would be more than `MOST` elastic workers.
        """
        with self._lock:
            free = [rank for rank in range(first, first + MOST) if rank not in self._groups]
            if not 1 <= count <= len(free):
                raise ValueError(f"1 to {len(free)} workers can join now, {MOST} in all. Received: {count}")
            group = threading.Event()
            self._groups.update(dict.fromkeys(free[:count], group))
            return free[:count], group

    def release(self, ranks: Sequence[int], group: threading.Event) -> list[int]:
        """Free those of `ranks` that still belong to `group`, set its event, and return them."""
        with self._lock:
            gone = [rank for rank in ranks if self._groups.get(rank) is group]
            for rank in gone:
                del self._groups[rank]
        group.set()
        return gone

    def release_all(self) -> list[int]:
        """Free all ranks, set the events of all groups, and return the ranks."""
        with self._lock:
            groups, self._groups = self._groups, {}
        for group in groups.values():
            group.set()
        return list(groups)

    def __contains__(self, rank: int) -> bool:
        return rank in self._groups
