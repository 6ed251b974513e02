"""The records of one run, read back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

RECORDS = "records.jsonl"
PRINTED, ERRORS = "printed", "errors"  # the run's standard output and standard error


def values_file(step: int) -> str:
    """Name of the file of a step's arrays: float64 of shape [2, values], the variables and their update."""
    return f"step-{step}.npy"


@dataclass(frozen=True)
class Values:
    """A variable behind a step. `now`, `update`: sketches; `unit`: the relative distance of its floats."""

    now: np.ndarray
    update: np.ndarray
    unit: float
    trainable: bool = True
    size: int = 0


@dataclass(frozen=True)
class Step:
    """`where`: file:line of the script; `printed`: bytes printed before the step ended; `logs`: its numbers."""

    where: str
    printed: int
    logs: Mapping[str, float]
    variables: Mapping[str, Values]


@dataclass(frozen=True)
class Run:
    """All that was recorded of a run."""

    steps: Sequence[Step]
    output: bytes = b""
    notes: Sequence[str] = field(default_factory=list)


def read_run(directory: Path) -> Run:
    """The run whose records are in `directory`; without steps where it kept none."""
    file = directory / RECORDS
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    steps = [_step(record, np.load(directory / values_file(record["step"]))) for record in records if "step" in record]
    return Run(steps, (directory / PRINTED).read_bytes(), [r["note"] for r in records if "note" in r])


def _step(record: Mapping[str, object], values: np.ndarray) -> Step:
    listed: Sequence[Sequence[object]] = record["variables"]  # type: ignore[assignment]
    cuts = np.cumsum([int(str(count)) for *_, count, _ in listed])[:-1]
    pairs = zip(np.split(values[0], cuts), np.split(values[1], cuts), strict=True)
    variables = {
        str(name): Values(now, update, float(str(unit)), bool(trainable), int(str(size)))
        for (name, unit, trainable, _, size), (now, update) in zip(listed, pairs, strict=True)
    }
    logs: Mapping[str, float] = record["logs"]  # type: ignore[assignment]
    return Step(str(record["where"]), int(str(record["printed"])), logs, variables)
