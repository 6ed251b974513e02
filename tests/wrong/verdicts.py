"""The verdict on a script: the same numbers as alone, refused before its first update, other numbers, or failed."""

import math
import re
from dataclasses import dataclass

from tests.integration.compat.outputs import NUMBER, lines, words
from tests.wrong.catalogue import CheckedScript

FLOOR = 1e-2  # absolute, of the relative tolerance: sums of weights cancel
SAME, REFUSED, DIFFERENT, FAILED = "same numbers", "refused", "DIFFERENT", "failed"


@dataclass(frozen=True)
class Verdict:
    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


def verdict(script: CheckedScript, alone: str, divided: str) -> Verdict:
    """Judge a script by what it printed.

    Args:
        script: Its tolerance and name are used.
        alone: Its output under plain Python.
        divided: Its output under an engine; a line "!! refused: ..." or "!! Type: ..." (bundle.py) where it raised.

    Returns:
        REFUSED only where the message names a line of the script and nothing was printed before it.
    """
    before, raised, message = divided.partition("!! ")
    message = message.strip()
    if not raised:
        differs = difference(alone, divided, script.tolerance)
        return Verdict(DIFFERENT, differs) if differs else Verdict(SAME)
    if not message.startswith("refused: "):
        return Verdict(FAILED, message)
    if before.strip():
        return Verdict(FAILED, f"refused after {before.strip().splitlines()[-1]!r}: {message}")
    if not re.search(rf"{script.name}\.py:\d+", message):
        return Verdict(FAILED, f"refused without a line of the script: {message}")
    return Verdict(REFUSED, message.removeprefix("refused: "))


def difference(alone: str, other: str, tolerance: float) -> str:
    """Return the first line that differs, in its words or by more than `tolerance` in a number; "" if none does.

    >>> difference("loss 1.0 at 3", "loss 1.1 at 3", 1e-3)
    "line 1: 'loss 1.1 at 3' instead of 'loss 1.0 at 3'"
    """
    mine, theirs = lines(alone), lines(other)
    for number, (one, two) in enumerate(zip(mine, theirs), 1):  # noqa: B905
        if words(one) != words(two) or not _near(one, two, tolerance):
            return f"line {number}: {two!r} instead of {one!r}"
    return "" if len(mine) == len(theirs) else f"{len(theirs)} lines instead of {len(mine)}"


def _near(one: str, two: str, tolerance: float) -> bool:
    pairs = zip(*([float(n) for n in NUMBER.findall(line)] for line in (one, two)), strict=True)
    return all(
        math.isclose(a, b, rel_tol=tolerance, abs_tol=FLOOR * tolerance) or a is b or a != a != b for a, b in pairs
    )
