"""What the script's callbacks and its History know, as far as it is plain, and what is left out of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from client_shim.resume import csv, plain
from fdt.tensors import Array


def own(callbacks: Sequence[Any]) -> list[Any]:
    """The script's own; the History is Keras's."""
    return [callback for callback in callbacks if type(callback).__name__ != "History"]


def both(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Sums that are in both: what callbacks set anew at the beginning of each `fit` is not what they were made with."""
    return dict(one.items() & other.items())


def numbers(history: dict[str, list[Any]]) -> tuple[dict[str, list[Any]], list[str]]:
    """`history` of plain values, and a line for each log of which some are none: a callback may put anything there."""
    found = {str(name): [_number(value) for value in values] for name, values in history.items()}
    pairs = zip(history.values(), found.items(), strict=True)
    lost = [name for before, (name, now) in pairs if now.count(None) > sum(value is None for value in before)]
    return found, [f"History: {name} is no number and was not saved" for name in lost]


def _number(value: Any) -> Any:
    """`value` where it is plain, else its number, as of a variable; None where it has none."""
    try:
        plain.encode(value, [])
    except plain.NotPlain:
        try:
            return float(np.asarray(value))
        except (TypeError, ValueError):
            return None
    return value


def kept(callbacks: Sequence[Any], sums: Sequence[dict[str, int]], arrays: list[Array]) -> tuple[list[Any], list[str]]:
    """What `callbacks` know that is plain, and a line for each of the script's own that keeps something else.

    `sums`: of what each was made with (plain.sums), which is not saved.
    """
    kept, left_out = [], []
    for callback, made_with in zip(callbacks, sums, strict=True):
        if type(callback).__name__ == csv.LOGGER:
            kept.append([csv.LOGGER, csv.kept(callback)])
            continue
        said, others = plain.attributes(callback, arrays, made_with)
        kept.append([type(callback).__name__, said])
        if others and not type(callback).__module__.startswith(("keras.", "tf_keras.")):
            left_out.append(f"{type(callback).__name__}: what it keeps in {', '.join(others)} is as the script made it")
    return kept, left_out
