"""Extraction of numbers from a script's output."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MARK = "\0"
# Times, rates and addresses, which differ in all runs: 12:05:01, 2026-11-22, 35ms/step, 3.2 s, 1,234 samples/s, 0x7f.
_TIMES = re.compile(
    r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?|\d{4}-\d\d-\d\d|0x[0-9a-fA-F]+"
    r"|\d[\d,.]*\s?\w+/(?:s|sec|second)\b|\d[\d.]*\s?(?:ns|us|µs|ms|s|sec|secs|seconds|min|minutes|h)\b(?:/\w+)?"
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
