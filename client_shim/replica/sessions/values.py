"""A session's variables, read and written by the operations that its graph has: it may be finalized."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Run = Callable[..., Any]  # of the session: (fetches, feeds)


def read(run: Run, variables: Sequence[Any]) -> list[Any]:
    return list(run(list(variables))) if variables else []


def write(run: Run, variables: Sequence[Any], values: Sequence[Any]) -> None:
    """By their initializers. Several may share the tensor that is their first value: those take turns."""
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
    """As `write`, for those whose values, `now`, are other ones."""
    pairs = [(v, a) for v, a, b in zip(variables, values, now, strict=True) if not _equal(a, b)]
    if pairs:
        write(run, *map(list, zip(*pairs, strict=True)))


def _equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f"))
