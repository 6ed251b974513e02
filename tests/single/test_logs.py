"""Keras logs as numbers."""

import numpy as np
import tensorflow as tf

from fdt.tensors import numbers


def test_scalars_of_any_kind_and_results_of_compiled_metrics() -> None:
    logs = {
        "loss": tf.constant(0.5),
        "compile_metrics": {"accuracy": np.float32(0.25)},
        "confusion": np.ones(2),
        "n": 3,
    }
    assert numbers(logs) == {"loss": 0.5, "accuracy": 0.25, "n": 3.0}
