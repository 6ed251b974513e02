"""`nfdt simulate` end to end: an unmodified script, several processes, the same bits."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import page_data

SCRIPT = Path(__file__).parent / "scripts" / "unseeded.py"
WRONG = Path(__file__).parents[1] / "wrong" / "scripts"


def simulate(*options, script=SCRIPT, check=True):
    argv = [sys.executable, "-m", "nfdt", "simulate", str(script), "--workers", "6", *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=150, check=check)


@pytest.mark.timeout(400)
def test_the_same_bits_for_a_seed_alone_and_in_a_comparison(tmp_path):
    alone = simulate("--algorithm", "asgd", "--data", str(tmp_path / "alone"))
    compared = simulate("--compare", "asgd,ssgd", "--report", str(tmp_path))
    lines = [line for line in compared.stdout.splitlines() if line.startswith("weights")]
    assert alone.stdout.strip() == lines[0] != lines[1]
    one, other = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("alone", "asgd"))
    assert one["fits"][0]["points"] == other["fits"][0]["points"] and one["logs"] == other["logs"]
    said = dict(line.removeprefix("nfdt: ").split(":", 1) for line in alone.stderr.splitlines() if "nfdt: " in line)
    assert said["trained"].strip() == "24 steps, 384 samples"
    assert {"simulated", "staleness", "moved", "wall time"} <= set(said)
    rows = json.loads((tmp_path / "compare.json").read_text())
    assert [row["algorithm"] for row in rows] == ["asgd", "ssgd"] and rows[1]["staleness_max"] == 0
    runs = page_data((tmp_path / "report.html").read_text())["runs"]
    assert [run["name"] for run in runs] == ["asgd", "ssgd"] and len(runs[0]["curves"]["accuracy"]["train"]["y"]) > 5


TWO_FITS = """
import keras
import numpy as np

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for _ in range(2):
    model.fit(np.ones((64, 2)), np.ones(64), batch_size=8, verbose=0)
"""


@pytest.mark.timeout(200)
def test_each_fit_has_random_times_of_its_own(tmp_path):
    (tmp_path / "train.py").write_text(TWO_FITS)
    simulate("--data", str(tmp_path), script=tmp_path / "train.py")
    first, second = json.loads((tmp_path / "run.json").read_text())["fits"]
    assert first["epochs"][0]["simulated_s"] != pytest.approx(second["epochs"][0]["simulated_s"], rel=1e-6)


@pytest.mark.timeout(200)
def test_a_fit_that_every_rank_must_run_is_refused_in_one_line():
    ended = simulate(script=WRONG / "fit_updates_by_hand.py", check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "nfdt: error: train_step applies gradients 0 times, and a server applies those of one optimizer, so every rank "
        "must run the script; nfdt simulate trains by fit alone. Use nfdt run --async"
    ]
