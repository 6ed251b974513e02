"""The comparison of a script's output alone and under an engine: the same words, and the same numbers if promised."""

import math
import re
from collections.abc import Iterable

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|(?<!\w)-?(?:nan|inf)(?!\w)")
NOT_OURS = re.compile(
    r"Downloading|^Epoch \d+/\d+$|\d+/\d+\b.*step|UserWarning|warn\(|self\.\w+ = |self\._\w+\(\)"
)  # Keras's bars, in place of which there is ours, and warnings
RELATIVE, ABSOLUTE = 1e-4, 2e-6


def difference(alone: str, other: str, *, exactly: bool) -> str:
    """ "" when they agree. `exactly`: the numbers, too; else there must be as many, and finite where alone they are."""
    mine, theirs = lines(alone), lines(other)
    if len(mine) != len(theirs):
        return f"{len(theirs)} lines instead of {len(mine)}: {theirs[-1:] or 'none'}"
    for one, two in zip(mine, theirs, strict=True):
        if words(one) != words(two) or not _same_numbers(one, two, exactly):
            return f"{two!r} instead of {one!r}"
    return ""


def ends_apart(alone: str, other: str, *, within: float) -> str:
    """ "" when the last lines have the same words, and numbers that differ by no more than `within`.

    >>> ends_apart("loss 9\\naccuracy 0.9", "loss 3\\nloss 2\\naccuracy 0.85", within=0.1)
    ''
    """
    one, two = lines(alone)[-1], (lines(other) or [""])[-1]
    same = words(one) == words(two)
    if same and all(abs(a - b) <= within for a, b in zip(_numbers(one), _numbers(two), strict=True)):
        return ""
    return f"{two!r} instead of {one!r}, at last"


def file_names(paths: Iterable[str], *, exactly: bool) -> set[str]:
    """Comparable. A checkpoint's number is a step's, or an epoch's: among asynchronous workers another may be the last.

    >>> sorted(file_names(["run/model.ckpt-7.index", "run/model.ckpt-12.index"], exactly=False))
    ['run/model.ckpt-N.index']
    """
    names = (re.sub(r"tfevents.*", "tfevents", path) for path in paths)
    return set(names) if exactly else {re.sub(r"-\d+(?=\.(?:index|meta|data-))", "-N", name) for name in names}


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not NOT_OURS.search(line)]


def words(line: str) -> str:
    """A line without its numbers and spaces (NumPy pads by the numbers' widths)."""
    return re.sub(r"\s+", "", NUMBER.sub("#", line))


def _same_numbers(one: str, two: str, exactly: bool) -> bool:
    pairs = zip(_numbers(one), _numbers(two), strict=True)
    if exactly:
        return all(math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or a is b for a, b in pairs)
    return all(math.isfinite(a) == math.isfinite(b) for a, b in pairs)


def _numbers(line: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(line)]
