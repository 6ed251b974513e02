"""The processes of a crew: started and stopped together, replaced one by one where their launcher can.

Each end of one is news once: until somebody has dealt with it.
"""

from collections.abc import Mapping, Sequence

from fdt import quiet
from fdt.launch import Exit, Launcher, Processes, Restartable, Task
from fdt.service.member import SIZE_VARIABLE


class LaunchedProcesses:
    """`launches`: what to start, by which launcher.  `env`: what all of them get besides their tasks' own."""

    def __init__(self, launches: Sequence[tuple[Launcher, Task]], env: Mapping[str, str]) -> None:
        self._launches, self._env = launches, env
        self._workers = 0  # how many, where fewer than were asked for
        self._running: list[Processes] = []
        self._lost: set[tuple[str, int]] = set()  # members whose end has been dealt with

    def __bool__(self) -> bool:
        return bool(self._running)

    @property
    def complete(self) -> bool:
        """All that were asked for, and none has ended."""
        return not self._workers and not self.exits()

    @property
    def counts(self) -> dict[str, int]:
        """How many by role."""
        return {task.role: self._count(task) for _, task in self._launches}

    def start(self, workers: int = 0) -> None:
        """`workers`: how many of these; 0: all. Raises UserError; then some may run, for `stop` to end."""
        self._workers = workers
        self._lost.clear()
        for launcher, task in self._launches:
            self._running.append(launcher.start(self._prepared(task)))

    def stop(self) -> None:
        """Within seconds."""
        stopping, self._running = self._running, []
        for running in stopping:
            running.stop()

    def restartable(self, role: str) -> list[Restartable]:
        """The processes of `role`, where one of them can be replaced."""
        pairs = zip(self._launches, self._running, strict=True)
        return [running for (_, task), running in pairs if task.role == role and isinstance(running, Restartable)]

    def restart(self, role: str, rank: int) -> None:
        for running in self.restartable(role):
            running.restart(rank)
            self._lost.discard((role, rank))

    def mark_handled(self, role: str, rank: int) -> None:
        """This one's end is no news any more."""
        self._lost.add((role, rank))

    def exits(self) -> list[Exit]:
        return [exit_ for running in self._running for exit_ in running.exits()]

    def unhandled_exits(self) -> list[Exit]:
        """Ends that nobody has dealt with."""
        return [e for e in self.exits() if e.rank is None or (e.role, e.rank) not in self._lost]

    def _count(self, task: Task) -> int:
        return self._workers if self._workers and task.role == "worker" else task.count

    def _prepared(self, task: Task) -> Task:
        env = {**quiet.variables(), SIZE_VARIABLE: str(self._count(task)), **self._env, **task.env}
        return Task(task.role, task.argv, self._count(task), env)
