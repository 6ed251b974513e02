"""The global random generators of Python, NumPy, TensorFlow and Keras 3: their seeds and their states."""

import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import wrapt

from client_shim.resume import plain
from fdt import compat

GENERATORS = ("python", "numpy", "tensorflow", "keras")


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
    keras = compat.of("keras").seed_generator() if "keras" in sys.modules else None
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "tensorflow": None if tensorflow is None else tensorflow.getstate(),
        "keras": None if keras is None else keras.state.numpy(),
    }


def sums() -> dict[str, int]:
    """Return checksums of the states."""
    return plain.sums(SimpleNamespace(**states()))


def restore(saved: dict[str, Any]) -> None:
    """Set the generators to those of the states that `states` returned which are in `saved`."""
    python, numpy = saved.get("python", random.getstate()), saved.get("numpy", np.random.get_state())
    if "keras" in sys.modules and saved.get("keras") is not None:  # older checkpoints have none
        compat.of("keras").global_seed_generator().state.assign(saved["keras"])  # it may draw its seed from `random`
    random.setstate(python)
    np.random.set_state(numpy)
    tensorflow = _tensorflows()
    if tensorflow is not None and saved.get("tensorflow") is not None:
        tensorflow.setstate(saved["tensorflow"])


def _tensorflows() -> random.Random | None:
    """Return the generator of seeds for TensorFlow's unseeded operations, where a global seed was set."""
    from fdt.compat.tensorflow import context

    drawn_from: random.Random | None = getattr(context.context(), "_rng", None)
    return drawn_from
