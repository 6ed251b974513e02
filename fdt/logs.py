"""Conversion of a training step's logs to numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars of `logs`. Dicts inside are flattened, as Keras does with a compiled metric's result."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            found.update(numbers(value))
        elif np.ndim(value) == 0:
            found[name] = float(value)
    return found
