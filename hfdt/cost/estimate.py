"""The estimate of a run's cost for numbers of ranks that were not measured, and for options. Arithmetic alone.

A rank's memory is what was measured, with the activations of its own rows and the slots that it holds. A rank's step is

    computing of its rows + exchange

where computing grows with the rows as in the timed step of hfdt/cost/step.py, and a ring sends each gradient
2 (n - 1) / n times. Nothing is subtracted for sending during the backward pass: links make it at most this slow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from client_shim.inspection import LINKS

SIZES = (1, 2, 4, 8)
SHARD = "--shard-optimizer"
HALF, TWICE = "half the batch size", "twice the batch size, for as many samples,"


@dataclass(frozen=True)
class Measured:
    """A short run.

    Attributes:
        workers: The number of ranks.
        step_s: Seconds of a step, in the epoch that other processes disturbed least.
        waited_s: The part of `step_s` in exchanges, of the rank that waited least: the others waited for it.
        memory: The largest rank's most resident bytes, as `top` shows them, but without shared memory.
        spread: The median epoch's time over the fastest one's: more than 1 where the machine does other work.
    """

    workers: int
    step_s: float
    waited_s: float
    memory: int
    spread: float = 1.0


@dataclass(frozen=True)
class TracedStep:
    """A step of some rows.

    Attributes:
        rows: Samples of the batch.
        activations: The most bytes of the forward pass that live at one time; None: unknown.
        unknown: Why `activations` is None.
        seconds: Seconds of the step on this machine.
    """

    rows: int
    activations: int | None
    unknown: str
    seconds: float


@dataclass(frozen=True)
class ModelBytes:
    """Bytes of the variables of a model, of their gradients, and of the optimizer's slots."""

    weights: int
    gradients: int
    slots: int


@dataclass(frozen=True)
class Estimate:
    """The cost of a number of ranks.

    Attributes:
        workers: The number of ranks.
        memory: A rank's most resident bytes, without shared memory.
        activations: Of these, those of the step's forward pass; None: unknown.
        step_s: Seconds of a step of a global batch, all ranks on this machine; None: unknown.
        linked_s: The same by link, with one rank on each machine.
        measured: Whether ranks were measured.
    """

    workers: int
    memory: int | None
    activations: float | None
    step_s: float | None
    linked_s: Mapping[str, float]
    measured: bool


class StepCurve:
    """A step's activations and time for parts of a batch, by the straight line through two traced steps.

    Args:
        traced: The traced steps: the whole batch first, and a part of it, unless the batch has one row.
    """

    def __init__(self, traced: Sequence[TracedStep]) -> None:
        self._whole, self._part = traced[0], traced[-1]

    def activations(self, parts: float) -> float | None:
        """Return the bytes of activations of 1/`parts` of the batch; None: unknown."""
        whole, part = self._whole.activations, self._part.activations
        return None if whole is None or part is None else self._at(parts, whole, part)

    def seconds(self, parts: float) -> float:
        """Return the seconds of a step of 1/`parts` of the batch, on one core."""
        return self._at(parts, self._whole.seconds, self._part.seconds)

    @property
    def unknown(self) -> str:
        """Why activations are not known."""
        return self._whole.unknown or self._part.unknown

    def _at(self, parts: float, whole: float, part: float) -> float:
        rows, few = self._whole.rows, self._part.rows
        slope = (whole - part) / (rows - few) if rows > few else 0.0
        return part + max(0.0, slope) * (max(1.0, rows / parts) - few)


class Cost:
    """The estimates of one job.

    Args:
        of: The bytes of its model.
        measured: The short runs, by number of ranks; one of them with one rank.
        curve: How a step depends on its rows.
        compressed: Bytes that stand for the gradients, by compressor.
        sharded: A short run of the largest measured number of ranks with --shard-optimizer; None: it was not measured.
    """

    def __init__(
        self,
        of: ModelBytes,
        measured: Mapping[int, Measured],
        curve: StepCurve,
        compressed: Mapping[str, Sequence[int]],
        sharded: Measured | None = None,
    ) -> None:
        self.of, self.measured, self.curve = of, measured, curve
        self.compressed, self._sharded = compressed, sharded
        self._most = measured[max(measured)]

    def at(self, workers: int) -> Estimate:
        """Return the cost of a number of ranks."""
        found = self.measured.get(workers)
        memory = found.memory if found else self._memory(workers)
        step_s = found.step_s if found else self._step_s(workers)
        alone = self._computing_s(workers, alone=True)
        linked = {link: alone + self.sent(workers) / speed for link, speed in LINKS.items()}
        return Estimate(workers, memory, self.curve.activations(workers), step_s, linked, found is not None)

    def sent(self, workers: int) -> float:
        """Return the bytes that a rank sends for a step."""
        return 2 * (workers - 1) / workers * self.of.gradients

    def memory_changes(self, workers: int) -> dict[str, float]:
        """Return by how many bytes options change the memory of a rank."""
        changes: dict[str, float] = {SHARD: self._sharded.memory - self._most.memory} if self._sharded else {}
        now, less = self.curve.activations(workers), self.curve.activations(2 * workers)
        return changes if now is None or less is None else {**changes, HALF: less - now}

    def time_changes(self, workers: int, bytes_per_s: float | None = None) -> dict[str, float]:
        """Return by how many seconds options change a step: on a link, or None: among ranks of this machine."""
        exchange_s = self.exchange_s(workers) if bytes_per_s is None else self.sent(workers) / bytes_per_s
        changes = {SHARD: self._sharded.step_s - self._most.step_s} if self._sharded else {}
        computing = self._computing_s(workers, alone=bytes_per_s is not None)
        doubled = computing * self.curve.seconds(workers / 2) / self.curve.seconds(workers)
        changes[TWICE] = (doubled - (exchange_s or 0.0)) / 2 - computing
        if exchange_s and self.of.gradients:
            for name, (size, *_) in self.compressed.items():
                changes[f"--compress {name}"] = -exchange_s * (1 - size / self.of.gradients)
        return changes

    def exchange_s(self, workers: int) -> float | None:
        """Return the seconds of a step's exchange among ranks of this machine; None: unknown."""
        if workers == 1:
            return 0.0
        if workers in self.measured:
            return self.measured[workers].waited_s
        most = self._most
        return most.waited_s * self.sent(workers) / self.sent(most.workers) if most.workers > 1 else None

    def _memory(self, workers: int) -> int | None:
        before, now = self.curve.activations(self._most.workers), self.curve.activations(workers)
        return None if before is None or now is None else round(self._most.memory - before + now)

    def _step_s(self, workers: int) -> float | None:
        """Return the time of a step on ranks that have as much of a core each as the most ranks that were measured."""
        exchange_s = self.exchange_s(workers)
        return None if exchange_s is None else self._computing_s(workers) + exchange_s

    def _computing_s(self, workers: int, *, alone: bool = False) -> float:
        """Return the time of a step without its exchange. `alone`: each rank has a machine to itself."""
        run = self.measured[1] if alone else self.measured.get(workers, self._most)
        grown = self.curve.seconds(workers) / self.curve.seconds(run.workers)
        return (run.step_s - run.waited_s) * grown
