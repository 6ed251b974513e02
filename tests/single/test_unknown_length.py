"""The notes about data of unknown length."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from client_shim.unknown_length import ROWS, UPDATES, notes


@pytest.mark.parametrize(
    ("engine", "batch", "steps", "model", "expected"),
    [
        ("hfdt", None, 0, {}, []),
        ("hfdt", 8, 0, {}, [ROWS]),
        ("nfdt", None, 0, {}, [UPDATES]),
        ("nfdt", 8, 0, {}, [UPDATES, ROWS]),
        ("nfdt", 8, 4, {}, []),
        ("nfdt", 8, 0, {"run_eagerly": True}, []),
        ("nfdt", 8, 0, {"jit_compile": True}, []),
    ],
)
def test_what_keras_counts_where_an_epoch_ends(engine, batch, steps, model, expected):
    call = SimpleNamespace(model=SimpleNamespace(**{"run_eagerly": False, "jit_compile": False, **model}))
    spec = ({"index": tf.TensorSpec([]), "x": tf.TensorSpec([batch, 3])}, tf.TensorSpec([batch, 1]))
    assert notes(engine, call, spec, steps) == expected
