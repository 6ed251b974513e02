"""Records of one run, read from its directory, and the numbers in its output."""

import json
import re
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


_MARK = "\0"
_UNIT = r"(?:ns|us|µs|ms|s|sec|secs|seconds|min|minutes|h)\b(?:/\w+)?"
# A word that a blank precedes and a number follows is that number's name: `mean 0.5 min 0.2`, `loss 0.5 s=3`.
_NO_NAME = r"(?!-\w|\s*=|\s*:?\s*[(\[$]*[-+]?\.?\d)"
# Times, rates and addresses, which differ in all runs: 12:05:01, 2026-11-22, 35ms/step, 3.2 s, 1,234 samples/s, 0x7f.
_TIMES = re.compile(
    r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?|\d{4}-\d\d-\d\d|0x[0-9a-fA-F]+"
    rf"|(?<![\d.,])\d[\d,.]*(?:\w+/(?:s|sec|second)\b|\s\w+/(?:s|sec|second)\b{_NO_NAME})"
    rf"|(?<![\d.])(?:\d+\s?{_UNIT}\s)*\d[\d.]*(?:{_UNIT}|\s{_UNIT}{_NO_NAME})"
)
_ESCAPES = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan\b|inf\b)")


@dataclass(frozen=True)
class Number:
    """A printed number; `last`: one unit of its last printed digit, 0 for whole numbers, which are exact."""

    value: float
    last: float


@dataclass(frozen=True)
class PrintedLine:
    """A printed line. `start`: its first byte in the output; `skeleton`: the line with its numbers replaced."""

    text: str
    start: int
    skeleton: str
    numbers: tuple[Number, ...]


def lines_of(output: bytes) -> Sequence[PrintedLine]:
    """Return the lines of `output` that have numbers."""
    found, start = [], 0
    for raw in output.split(b"\n"):
        line = _line(_shown(raw.decode(errors="replace")), start)
        start += len(raw) + 1
        if line.numbers:
            found.append(line)
    return found


def _shown(text: str) -> str:
    """Return the line as a terminal shows it: a progress bar's last state, without colours."""
    return _ESCAPES.sub("", text.rstrip("\r").rpartition("\r")[2].replace("\x08", "")).rstrip()


def _line(text: str, start: int) -> PrintedLine:
    timeless = _TIMES.sub("", text)
    numbers = tuple(_number(match) for match in _NUMBER.findall(timeless))
    return PrintedLine(text, start, _NUMBER.sub(_MARK, timeless), numbers)


def _number(text: str) -> Number:
    digits, _, exponent = text.lower().partition("e")
    if "n" in digits or ("." not in digits and not exponent):
        return Number(float(text), 0.0)
    decimals = len(digits.partition(".")[2])
    return Number(float(text), 10.0 ** (int(exponent or 0) - decimals))
