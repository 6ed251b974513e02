"""A third of the compatibility suite (make compat): typical scripts, alone and under both engines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.compat.catalogue import OTHER_NUMBERS, QUICK, REFUSED, STEPS_PRINTED
from tests.integration.compat.outputs import difference, ends_apart

BUNDLE = Path(__file__).parent / "compat" / "bundle.py"


def run(command, names, folder):
    folder.mkdir()
    argv = [*command, str(BUNDLE), *names]
    ended = subprocess.run(
        argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=560, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(BUNDLE.parents[3]), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if "tfevents" not in p.name}
    outputs = dict(part.split("\n", 1) for part in ended.stdout.split("== ")[1:])
    return outputs, files, ended.stderr


def engine(name, capture):
    return [sys.executable, "-m", name, "run", "-np", "2", "--capture", capture]


@pytest.fixture(scope="module", params=QUICK)
def capture(request):
    return request.param


@pytest.fixture(scope="module")
def alone(capture, tmp_path_factory):
    return run([sys.executable], QUICK[capture], tmp_path_factory.mktemp("alone") / capture)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["hfdt", "nfdt"])
def test_scripts_as_people_write_them(name, capture, alone, tmp_path):
    expected, expected_files, _ = alone
    taken = [script for script in QUICK[capture] if (script, name) not in REFUSED]
    outputs, files, said = run(engine(name, capture), taken, tmp_path / "run")
    assert list(outputs) == taken
    for script, output in outputs.items():
        if name == "nfdt" and script in STEPS_PRINTED:
            within = STEPS_PRINTED[script]
            assert within is None or not ends_apart(expected[script], output, within=within), script
            continue
        exactly = name == "hfdt" and script not in OTHER_NUMBERS
        assert not difference(expected[script], output, exactly=exactly), script
    assert files == expected_files
    for worker in ("worker 0:", "worker 1:"):
        (line,) = [line for line in said.splitlines() if worker in line]
        assert " 0 samples" not in line
