"""The global random generators of Python, NumPy and TensorFlow: their seeds and their states."""

import random
from typing import Any

import numpy as np
import wrapt


def seed_all(seed: int) -> None:
    """Seed a script that sets no seed itself, so that every run or rank draws alike; TensorFlow when it is imported."""

    def tensorflow(module: Any) -> None:
        module.random.set_seed(seed % 2**31)

    random.seed(seed)
    np.random.seed(seed % 2**32)
    wrapt.register_post_import_hook(tensorflow, "tensorflow")


def states() -> dict[str, Any]:
    """Return the states as plain values (client_shim/resume/plain.py)."""
    tensorflow = _tensorflows()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "tensorflow": None if tensorflow is None else tensorflow.getstate(),
    }


def restore(saved: dict[str, Any]) -> None:
    """Set the generators to the states that `states` returned."""
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    tensorflow = _tensorflows()
    if tensorflow is not None and saved["tensorflow"] is not None:
        tensorflow.setstate(saved["tensorflow"])


def _tensorflows() -> random.Random | None:
    """Return the generator of seeds for TensorFlow's unseeded operations, where a global seed was set."""
    from fdt.compat.tensorflow import context

    drawn_from: random.Random | None = getattr(context.context(), "_rng", None)
    return drawn_from
