"""The progress of one epoch, aggregated over the workers' Progress reports."""

from collections.abc import Iterator

from fdt.rpc.session_pb2 import Progress, StepEnd


class EpochProgress:
    """The aggregated progress of an epoch.

    `adds_steps`: each worker takes steps of its own (asynchronous); otherwise all workers take part in every step.
    """

    def __init__(self, adds_steps: bool) -> None:
        self._adds_steps = adds_steps
        self._workers: dict[int, Progress] = {}
        self._lock_step: StepEnd | None = None
        self.epoch = -1

    def begin(self, epoch: int) -> None:
        """Start an epoch."""
        self.epoch = epoch
        self._workers = {}
        self._lock_step = None

    def progress(self, rank: int, progress: Progress) -> None:
        """Add a worker's report; a late one of another epoch is ignored."""
        if progress.epoch == self.epoch:
            self._workers[rank] = progress

    def step_end(self, step: StepEnd) -> None:
        """Add the engine's aggregate of a step, which it sends for every step in lock step."""
        self._lock_step = step

    @property
    def step(self) -> int:
        if self._lock_step is not None:
            return self._lock_step.step
        steps = [worker.step for worker in self._workers.values()]
        return sum(steps) if self._adds_steps else max(steps, default=0)

    @property
    def samples(self) -> int:
        return sum(worker.samples for worker in self._workers.values())

    @property
    def logs(self) -> dict[str, float]:
        """Each metric's mean over the workers that have it, weighted by their samples."""
        if self._lock_step is not None:
            return dict(self._lock_step.logs)
        return {name: self._mean(name) for name in self._names()}

    def _names(self) -> Iterator[str]:
        return iter(sorted({name for worker in self._workers.values() for name in worker.logs}))

    def _mean(self, name: str) -> float:
        pairs = [(w.logs[name], w.samples) for w in self._workers.values() if name in w.logs]
        total = sum(samples for _, samples in pairs)
        if not total:
            return sum(value for value, _ in pairs) / len(pairs)
        return sum(value * samples for value, samples in pairs if samples) / total
