"""States of callbacks and of History: plain values to save, rows of a CSVLogger, and notes on what is left out."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from client_shim.resume import plain
from fdt.typing import Array

# Attributes by which Keras's CSVLogger describes its open file. The first one has the file's size in a checkpoint.
_OF_ITS_FILE = ("csv_file", "writer", "keys", "append", "append_header")


def own(callbacks: Sequence[Any]) -> list[Any]:
    """Return the script's own callbacks, without Keras's History."""
    return [callback for callback in callbacks if type(callback).__name__ != "History"]


def both(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Return the checksums that two dictionaries share: attributes that callbacks set anew at each `fit` differ."""
    return dict(one.items() & other.items())


def numbers(history: dict[str, list[Any]]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return `history` as plain values, and a line for each log with others: a callback may put anything there."""
    found = {str(name): [number(value) for value in values] for name, values in history.items()}
    pairs = zip(history.values(), found.items(), strict=True)
    lost = [name for before, (name, now) in pairs if now.count(None) > sum(value is None for value in before)]
    return found, [f"History: {name} is not a number and was not saved" for name in lost]


def number(value: Any) -> Any:
    """Return `value` if it is plain, otherwise its number, as for a variable; None where it has none."""
    try:
        plain.encode(value, [])
    except plain.NotPlain:
        try:
            return float(np.asarray(value))
        except (TypeError, ValueError):
            return None
    return value


def kept(callbacks: Sequence[Any], sums: Sequence[dict[str, int]], arrays: list[Array]) -> tuple[list[Any], list[str]]:
    """Return the plain state of `callbacks`, and a line for each of the script's own that holds other state.

    Args:
        callbacks: The callbacks.
        sums: Checksums of the attributes that each was made with (plain.sums), which are not saved.
        arrays: Receives the arrays of the state.
    """
    kept, left_out = [], []
    for callback, made_with in zip(callbacks, sums, strict=True):
        encoded, others = plain.attributes(callback, arrays, made_with)
        if is_csv_logger(callback):
            encoded = without_file(encoded) | {_OF_ITS_FILE[0]: _size(callback)}
            others = list(without_file(dict.fromkeys(others)))
        kept.append([type(callback).__name__, encoded])
        if others and not type(callback).__module__.startswith(("keras.", "tf_keras.")):
            left_out.append(
                f"{type(callback).__name__}: {', '.join(others)} cannot be saved; the script's own value is used"
            )
    return kept, left_out


def is_csv_logger(callback: Any) -> bool:
    """Return whether `callback` is a CSVLogger, or of a class derived from it."""
    kinds = ((kind.__name__, kind.__module__.partition(".")[0]) for kind in type(callback).__mro__)
    return any(name == "CSVLogger" and library in ("keras", "tf_keras") for name, library in kinds)


def without_file(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return `attributes` of a CSVLogger without those that describe its open file."""
    return {name: value for name, value in attributes.items() if name not in _OF_ITS_FILE}


def _size(logger: Any) -> int | None:
    """Return the size of the logger's file, to which each row is written at once."""
    try:
        return os.stat(logger.filename).st_size
    except (OSError, AttributeError, TypeError):
        return None


def continue_csv(logger: Any, saved: dict[str, Any]) -> tuple[Any, bool, bool]:
    """Make `logger` append, and cut its file at its size in the checkpoint, as later rows are written again.

    Returns:
        The logger, the script's `append` and `append_header`.
    """
    script = logger, logger.append, logger.append_header
    logger.append = True
    size = saved.get(_OF_ITS_FILE[0], saved.get("size"))  # "size": of older checkpoints
    with contextlib.suppress(OSError):
        if isinstance(size, int) and os.stat(logger.filename).st_size > size:
            os.truncate(logger.filename, size)
    return script
