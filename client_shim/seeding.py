"""What a script draws without a seed of its own, made the same in every run, or on every rank."""

import random
from typing import Any

import numpy as np
import wrapt


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and TensorFlow's random numbers, so Keras's; TensorFlow's once it is imported."""

    def tensorflow(module: Any) -> None:
        module.random.set_seed(seed % 2**31)

    random.seed(seed)
    np.random.seed(seed % 2**32)
    wrapt.register_post_import_hook(tensorflow, "tensorflow")
