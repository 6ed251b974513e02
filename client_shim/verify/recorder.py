"""Recorder of one run's steps; a step is a change of trainable variables between two events."""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from client_shim.replica.steps import where
from client_shim.verify.plan import RECORDS, RecordingPlan, values_file
from client_shim.verify.variables import TrackedVariable, TrackedVariables, read


class RecordingDone(SystemExit):
    """Raised when all steps are recorded; it ends the script with exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Recorder:
    """Records the run's steps; on ranks other than 0 it does the same but writes no files.

    An event (a tape, a call of a tf.function, a batch of `fit`) begins with `begin` and may end with `changed`. Code
    between
    two events belongs to the first.
    """

    def __init__(self, plan: RecordingPlan, *, writes: bool) -> None:
        self._plan, self._writes = plan, writes
        self.variables = TrackedVariables()
        self._steps = 0
        self._depth = 0  # depth of nested events
        self._trained = False  # an event that may train began since the last step
        self._taped = False  # whether the event has a tape; a variable that it made and trained has no earlier value
        self._open: dict[str, Any] | None = None  # the facts of the step that has not ended
        self._held: list[Any] = []  # strong references: variables of the step live until it is recorded

    # -- events ------------------------------------------------------------------------------------------------------
    def outermost(self) -> bool:
        """Return whether no event is running and this is the main thread, which runs the script."""
        return self._depth == 0 and threading.current_thread() is threading.main_thread()

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Within the context, events are parts of one that is running."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def begin(self) -> None:
        """Begin an event and record earlier changes as a step. Raises RecordingDone after the last step."""
        self.close()
        if self._steps >= self._plan.steps:
            raise RecordingDone
        if self._plan.shaken:
            self._shake()
        self._trained, self._taped = True, False
        self._hold()

    def taped(self) -> None:
        """Note that the event records gradients, eagerly or in a function's trace."""
        self._taped = True

    def accumulated(self) -> None:
        """Note that the event's gradients are not applied yet: a variable that it made has its first value."""
        self._taped = False

    def changed(self, logs: Mapping[str, float] | None = None) -> None:
        """Note that variables may have changed. `logs`: known numbers of the step, such as "loss"."""
        if self._open is None:
            self._open = {"printed": _printed(), "where": where(), "logs": {}}
        for name, value in (logs or {}).items():
            self._open["logs"].setdefault(name, value)
        self._hold()

    def close(self) -> None:
        """Record a step if trainable variables have changed and something that may train has run."""
        pairs = self.variables.living()
        values = read(pairs)
        moved = [v for each, v in pairs if each.name in values and self._moved(each, values[each.name])]
        if self._trained and any(variable.trainable for variable in moved) and self._steps < self._plan.steps:
            self._record(pairs, values)
        for each, _ in pairs:
            each.note(values.get(each.name, each.last))
        self._open, self._trained, self._held = None, False, []

    def note(self, text: str) -> None:
        """Record a line to be shown beside the verdict."""
        self._write({"note": text})

    def _moved(self, each: TrackedVariable, now: np.ndarray) -> bool:
        return self._taped and self._open is not None if each.last is None else not _same(each.last, now)

    # -- values and files ---------------------------------------------------------------------------------------------
    def _hold(self) -> None:
        self._held = [variable for _, variable in self.variables.living()]

    def _shake(self) -> None:
        for each, variable in self.variables.living():
            lost = self._steps == 0 and not _same(each.last, each.shaken)
            if variable.trainable and each.last is not None and (each.shaken is None or lost):
                each.shake(variable, self.variables.unit_of(variable))

    def _record(self, pairs: Any, values: Mapping[str, np.ndarray]) -> None:
        self._steps += 1
        facts = self._open or {"printed": _printed(), "where": where(), "logs": {}}
        known = [(each, variable) for each, variable in pairs if each.name in values]
        unit_of = self.variables.unit_of
        listed = [[e.name, unit_of(v), bool(v.trainable), values[e.name].size, list(v.shape)] for e, v in known]
        now = [values[each.name] for each, _ in known]
        update = [value - (np.nan if e.last is None else e.last) for (e, _), value in zip(known, now, strict=True)]
        if self._writes:
            np.save(self._plan.directory / values_file(self._steps), [np.concatenate(now), np.concatenate(update)])
        self._write({"step": self._steps, **facts, "variables": listed})

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._writes:
            with open(self._plan.directory / RECORDS, "a") as file:
                file.write(json.dumps(record) + "\n")


def _printed() -> int:
    """Return the number of bytes of standard output so far."""
    sys.stdout.flush()
    try:
        return os.lseek(1, 0, os.SEEK_CUR)
    except OSError:  # a pipe, in ranks whose output is not compared
        return 0


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is None or b is None or np.array_equal(a, b, equal_nan=True)
