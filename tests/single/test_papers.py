"""Every experiment of the source documents, in few and short runs: `make papers ARGS=--quick`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "papers.md"


@pytest.mark.timeout(900)
def test_every_experiment_runs_and_draws_its_picture(dataset):
    for name in ("fashion_mnist", "mnist", "cifar10"):
        dataset(name)
    command = [sys.executable, "-m", "benchmarks.papers", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    shown = re.findall(r"^([A-E]\d): ", done.stdout, re.MULTILINE)
    assert shown == re.findall(r"^### ([A-E]\d): ", PAGE.read_text(), re.MULTILINE)
    assert len(shown) >= 30
    assert done.stdout.count("measured:  ") == len(shown)
    assert "\nnot run yet\n" not in done.stdout


def test_an_unknown_experiment_is_named():
    command = [sys.executable, "-m", "benchmarks.papers", "A1", "Z9"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert "papers: no experiment is named Z9. Known: A1, " in done.stderr
