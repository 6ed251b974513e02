"""Seeding of a script that sets no seed itself, so that every run or every rank draws the same numbers."""

import random
from typing import Any

import numpy as np
import wrapt


def seed_all(seed: int) -> None:
    """Seed the random numbers of Python, NumPy and TensorFlow (hence Keras); TensorFlow's when it is imported."""

    def tensorflow(module: Any) -> None:
        module.random.set_seed(seed % 2**31)

    random.seed(seed)
    np.random.seed(seed % 2**32)
    wrapt.register_post_import_hook(tensorflow, "tensorflow")
