"""The notes about data of unknown length."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from client_shim.state import Settings
from client_shim.unknown_length import EMPTY, ENDED, ROWS, UPDATES, note_end, notes


@pytest.mark.parametrize(
    ("engine", "batch", "known", "model", "expected"),
    [
        ("hfdt", None, False, {"steps": 2}, [EMPTY]),
        ("hfdt", None, False, {"steps": 2, "flavor": "tf_keras"}, []),
        ("hfdt", None, False, {}, []),
        ("hfdt", 8, False, {}, [ROWS]),
        ("nfdt", None, False, {}, [UPDATES]),
        ("nfdt", 8, False, {}, [UPDATES, ROWS]),
        ("nfdt", 8, True, {}, []),
        ("nfdt", 8, False, {"run_eagerly": True}, []),
        ("nfdt", 8, False, {"jit_compile": True}, []),
    ],
)
def test_what_keras_counts_where_an_epoch_ends(engine, batch, known, model, expected):
    flavor = SimpleNamespace(name=model.get("flavor", "keras"))
    fitted = SimpleNamespace(**{"run_eagerly": False, "jit_compile": False, **model})
    call = SimpleNamespace(model=fitted, flavor=flavor, steps_per_epoch=model.get("steps", 0))
    spec = ({"index": tf.TensorSpec([]), "x": tf.TensorSpec([batch, 3])}, tf.TensorSpec([batch, 1]))
    assert notes(engine, call, spec, known=known) == expected


@pytest.mark.parametrize(
    ("engine", "eager", "expected"), [("nfdt", False, [ENDED]), ("nfdt", True, []), ("hfdt", False, [])]
)
def test_data_that_end_within_an_epoch(engine, eager, expected):
    said, hello = [], SimpleNamespace(workers=1)
    run = SimpleNamespace(engine=engine, reporters=SimpleNamespace(note=said.append), settings=Settings())
    run.client = SimpleNamespace(hello=hello)
    call = SimpleNamespace(model=SimpleNamespace(run_eagerly=eager))
    for feeder in (None, SimpleNamespace(ran_out=False)):
        note_end(run, call, feeder)
    assert not said
    note_end(run, call, SimpleNamespace(ran_out=True))
    assert said == expected
