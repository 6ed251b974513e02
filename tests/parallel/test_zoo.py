"""Standard models: none is refused, and the loss in slices is that of the whole batch. Two ranks (zoo_ranks.py).

In real runs, by hand: `hfdt run tests/parallel/zoo.py -np 2 -- NAME` against `python tests/parallel/zoo.py NAME`.
"""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from under_mpirun import needs_mpirun, run

pytestmark = [needs_mpirun, pytest.mark.timeout(900)]


def check(out, *names):
    pytest.importorskip("mpi4py")
    run(2, "zoo_ranks.py", out, "mpi", *names, timeout_s=800)
    for name, result in json.loads(Path(f"{out}-0.json").read_text()).items():
        reading, notes, difference, sliced, alone, _ = result
        assert (reading, notes) == ("MEAN", []), name
        assert difference < (1e-5 if name == "unet" else 1e-11), name  # bilinear resizing stays in float32
        assert sliced == pytest.approx(alone, rel=1e-5), name


def test_small_models_are_divided(tmp_path):
    check(tmp_path / "found", "lstm", "transformer", "vae", "unet", "resnet20")


@pytest.mark.slow
def test_deep_models_are_divided(tmp_path):
    """One at its full depth; of the others every kind of block."""
    check(tmp_path / "found", "MobileNetV2", "efficientnet", "densenet", "resnet")
