"""Reads and writes of a session's variables by existing operations, because the graph may be finalized."""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import of_script

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


_BETWEEN = ("/tensorflow/python/framework/", "/tensorflow/python/autograph/", "/fdt/patches.py", "/replica/session")


def _is_between(frame: Any) -> bool:
    path = frame.f_code.co_filename
    return not of_script(path) and any(part in path for part in _BETWEEN)


def read_by_script() -> bool:
    """Return whether the script itself called `run` or `eval`, in the main thread.

    Hooks and savers read on their own rank only.
    """
    frame: Any = sys._getframe(2)
    while frame is not None and _is_between(frame):
        frame = frame.f_back
    asked = frame is not None and of_script(frame.f_code.co_filename)
    return asked and threading.current_thread() is threading.main_thread()


def agreed_numbers(result: Any, rank_0s: Callable[[str, Any], Any]) -> Any:
    """Return `result` with rank 0's numbers; arrays and other values stay. A collective.

    `rank_0s`: returns rank 0's value, given the name of the exchange and this rank's value.
    """
    leaves = tf.nest.flatten(result)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (np.floating, np.integer, np.bool_))]
    if not places:
        return result
    agreed = rank_0s("a session run's result", [_plain(leaves[i]) for i in places])
    for i, number in zip(places, agreed, strict=True):
        leaves[i] = type(leaves[i])(number)
    return tf.nest.pack_sequence_as(result, leaves)


def _plain(number: Any) -> Any:
    return float(number) if isinstance(number, np.floating) else number.item()
