"""The states of the generators that a script draws from without naming one: Python's, NumPy's, TensorFlow's."""

import random
from typing import Any

import numpy as np


def states() -> dict[str, Any]:
    """Plain values (client_shim/resume/plain.py)."""
    tensorflow = _tensorflows()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "tensorflow": None if tensorflow is None else tensorflow.getstate(),
    }


def restore(saved: dict[str, Any]) -> None:
    """Go on drawing where `states` was called."""
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    tensorflow = _tensorflows()
    if tensorflow is not None and saved["tensorflow"] is not None:
        tensorflow.setstate(saved["tensorflow"])


def _tensorflows() -> random.Random | None:
    """What gives ops without a seed of their own one, where a global seed was set."""
    from tensorflow.python.eager import context

    drawn_from: random.Random | None = getattr(context.context(), "_rng", None)
    return drawn_from
