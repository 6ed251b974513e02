"""Reads and writes of a session's variables by existing operations, because the graph may be finalized."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Run = Callable[..., Any]  # the session's run: (fetches, feeds) -> values


def read(run: Run, variables: Sequence[Any]) -> list[Any]:
    """Return the values of `variables`."""
    return list(run(list(variables))) if variables else []


def write(run: Run, variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Write `values` by the variables' initializers; variables that share an initial tensor are written in turn."""
    waiting = list(zip(variables, values, strict=True))
    while waiting:
        feeds: dict[str, Any] = {}
        now, later = [], []
        for variable, value in waiting:
            source = variable.initializer.inputs[1]
            if source.name in feeds:
                later.append((variable, value))
            else:
                feeds[source.name] = value
                now.append(variable.initializer)
        run(now, feeds)
        waiting = later


def write_changed(run: Run, variables: Sequence[Any], values: Sequence[Any], now: Sequence[Any]) -> None:
    """Write `values` to the variables whose current values, `now`, differ."""
    pairs = [(v, a) for v, a, b in zip(variables, values, now, strict=True) if not _equal(a, b)]
    if pairs:
        write(run, *map(list, zip(*pairs, strict=True)))


def _equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f"))
