"""Records of one run, read from its directory."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from client_shim.verify.plan import PRINTED, RECORDS, values_file


@dataclass(frozen=True)
class VariableRecord:
    """A variable after a step.

    Args:
        name: The variable's name.
        now, update: Sketches of its values and of the step's change; the change is NaN where the step made it.
        unit: The relative distance of its floats.
        trainable: Whether it is trained.
    """

    name: str
    now: np.ndarray
    update: np.ndarray
    unit: float
    trainable: bool = True

    @property
    def known(self) -> bool:
        """Whether the variable existed before the step, so that its update is known."""
        return np.array_equal(np.isnan(self.update), np.isnan(self.now))


@dataclass(frozen=True)
class RecordedStep:
    """A recorded step.

    Attributes:
        where: The script's file and line.
        printed: Bytes printed before the step ended.
        logs: The step's numbers by name.
        variables: By shape and number among those of that shape, because names depend on when a model is built.
    """

    where: str
    printed: int
    logs: Mapping[str, float]
    variables: Mapping[str, VariableRecord]


@dataclass(frozen=True)
class RecordedRun:
    """All records of a run."""

    steps: Sequence[RecordedStep]
    output: bytes = b""
    notes: Sequence[str] = field(default_factory=list)


def read_run(directory: Path) -> RecordedRun:
    """Return the run whose records are in `directory`; without steps where it recorded none."""
    file = directory / RECORDS
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    steps = [_step(record, np.load(directory / values_file(record["step"]))) for record in records if "step" in record]
    return RecordedRun(steps, (directory / PRINTED).read_bytes(), [r["note"] for r in records if "note" in r])


def _step(record: Mapping[str, Any], values: np.ndarray) -> RecordedStep:
    listed = record["variables"]
    cuts = np.cumsum([count for *_, count, _ in listed])[:-1]
    parts = zip(np.split(values[0], cuts), np.split(values[1], cuts), strict=True)
    variables, numbers = {}, Counter[str]()
    for (name, unit, trainable, _, shape), (now, update) in zip(listed, parts, strict=True):
        kind = f"{shape}{'' if trainable else ' state'}"
        numbers[kind] += 1
        variables[f"{kind} {numbers[kind]}"] = VariableRecord(name, now, update, unit, trainable)
    return RecordedStep(record["where"], record["printed"], record["logs"], variables)
