"""Small models that are hard to divide: plain Keras, trained alone and in slices by `ranks.py`.

The models are in keras_cases.py and tf_keras_cases.py.
"""

import importlib.util
from pathlib import Path

import numpy as np

ROWS, BATCH, EPOCHS = 1003, 64, 3
_SCRIPT = Path(__file__).parents[1] / "integration" / "scripts" / "same_numbers.py"

OPTIONS = {  # of the job, by case
    "coded": {"rule": "coded"},
    "not_finite": {"on_nan": "skip", "bucket_mb": "0.0001"},
    **dict.fromkeys(
        ("few_left", "scalar_sum", "custom_sum", "old_dense", "old_masked"),
        {"shard_optimizer": "1", "bucket_mb": "0.0001"},
    ),
    **dict.fromkeys(("two_outputs", "embedding_clipped", "compiled_step", "custom_mean"), {"bucket_mb": "0.0001"}),
}


def same_numbers():
    spec = importlib.util.spec_from_file_location("same_numbers", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names():
    """Those that tests/integration/test_same_numbers.py does not train end to end."""
    return (
        "dense coded few_left scalar_sum no_reduction two_outputs metrics embedding_clipped compiled_step custom_mean "
        "custom_sum two_optimizers not_finite old_dense old_batch_norm old_summed old_masked"
    ).split()


def finite_batches(x, y):
    """Without the batches that hold NaN, which a run with `--on-nan skip` passes over."""
    bad = [start for start in range(0, len(x), BATCH) if np.isnan(x[start : start + BATCH]).any()]
    rows = [slice(start, start + BATCH) for start in bad]
    return (np.delete(x, np.r_[tuple(rows)], 0), np.delete(y, np.r_[tuple(rows)], 0)) if rows else (x, y)


def result(model, logs):
    """What is compared: every epoch's logs, and the weights."""
    arrays = {f"log {key}": np.asarray(values, np.float64) for key, values in logs.items()}
    return {**arrays, **{f"w{i}": np.asarray(w) for i, w in enumerate(model.get_weights())}}
