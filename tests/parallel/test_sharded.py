"""Promise 2 for one model and its ranks: training on slices of a batch gives the result of the whole batch."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import cases
from under_mpirun import needs_mpirun, run

pytestmark = [needs_mpirun, pytest.mark.timeout(900)]
SMALLEST = 0.01  # a norm below it is held to this: a bias before BatchNorm is nothing but rounding


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("sharded") / "alone"
    run(0, "ranks.py", out, *cases.names(), timeout_s=400)
    return out


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("sharded") / f"np{request.param}"
    run(request.param, "ranks.py", out, *cases.names(), timeout_s=800)
    return out


@pytest.mark.parametrize("case", cases.names())
def test_slices_train_as_the_whole(alone, ranks, case):
    with np.load(f"{alone}-{case}.npz") as one, np.load(f"{ranks}-{case}.npz") as other:
        scalars = {name for name in one if not name.startswith("log") or one[name].ndim == 1}
        assert scalars == set(other)
        for name in scalars:
            if name.startswith("log"):
                np.testing.assert_allclose(other[name], one[name], rtol=1e-5, err_msg=name)
            else:
                distance = np.linalg.norm(other[name] - one[name]) / max(np.linalg.norm(one[name]), SMALLEST)
                assert distance <= 1e-5, f"{name} of {one[name].shape} is off by {distance:.1e}"


def test_the_user_is_told_what_was_found(ranks):
    notes = json.loads(Path(f"{ranks}-0.json").read_text())
    assert notes.pop("metrics", []) == []
    assert "blocks per batch, each on" in notes.pop("coded")[-1]
    assert not any(notes.values()), notes
