"""Ranks that are not at the collective at which rank 0 is: which may have left, and the error for the others."""

from collections.abc import Mapping, Sequence
from typing import Any

_FAILED = "exit code 1"  # the script raised an exception; a script may exit with any other code

_OWN_NUMBERS = "; a worker's own number may have decided, as np.mean of a list of tensors does: read each by float()"


def exited_by_itself(how: str) -> bool:
    """Return whether a script that ended as `how` says has ended on purpose."""
    return how.startswith("exit code ") and how != _FAILED


def describe_mismatch(
    rank: int, header: Mapping[str, Any], mine: str, wanted: Sequence[Any], *, asynchronous: bool
) -> str:
    """Return the error: where `rank` is by its `header`, and `mine`, where rank 0 is, at collective `wanted`."""
    ended = header["value"] if header["what"] == "end" else {}
    how = ": ".join(filter(None, (ended.get("how"), ended.get("died_of"))))
    theirs = f"has ended the script ({how})" if ended else f"calls {named(header['what'], wanted)} at {header['where']}"
    hint = _OWN_NUMBERS if asynchronous and not ended else ""
    return f"all ranks must call the same collectives in the same order, but rank {rank} {theirs}, and {mine}{hint}"


def named(wanted: Any, beside: Any) -> str:
    """Return a description of the collective `wanted`, with its number where it otherwise equals `beside`."""
    if wanted == "push":
        return "a push"
    name, count, _, number = wanted
    shown = f"{name} ({count:,} numbers)" if count else str(name)
    return f"{shown}, sum {number + 1:,}" if list(wanted[:2]) == list(beside[:2]) else shown
