"""Promise 2: at -np 1, 2, 3 every epoch's loss and metrics, and every final variable, are those of one machine."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parent / "scripts" / "same_numbers.py"
LOOSE = {"batch_norm": 1e-4, "masked": 1e-4}
CASES = [
    *("dense", "convolutional", "batch_norm", "masked", "class_weight", "sample_weight"),
    *("summed", "compiled", "overflow", "validated"),
]


def run(command, out):
    ended = subprocess.run([*command, str(out)], capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(out.with_suffix(".json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    return run([sys.executable, str(SCRIPT)], out), out


@pytest.fixture(scope="module", params=[1, 2, 3])
def distributed(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(f"np{request.param}") / "run"
    return run([sys.executable, "-m", "hfdt", "run", "-np", str(request.param), str(SCRIPT)], out), out


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_one_machine(alone, distributed, case):
    (expected, expected_out), (got, got_out) = alone, distributed
    tolerance = LOOSE.get(case, 1e-5)
    assert list(got[case]) == list(expected[case])
    for key, values in expected[case].items():
        np.testing.assert_allclose(got[case][key], values, rtol=tolerance, err_msg=f"{case}: {key}")
    with np.load(f"{expected_out}-{case}.npz") as one, np.load(f"{got_out}-{case}.npz") as other:
        assert len(one) == len(other)
        for name in one:
            distance = np.linalg.norm(other[name] - one[name]) / max(np.linalg.norm(one[name]), 1e-12)
            assert distance <= tolerance, f"{case}: variable {name} of {one[name].shape} is off by {distance:.2e}"


def test_the_overflowing_case_really_skips_steps(alone):
    history, _ = alone
    assert np.isfinite(history["overflow"]["loss"]).all()
