"""`--json` of doctor, inspect, verify and attach: one object or lines of JSON on standard output, and nothing else."""

import json
import math
import subprocess
import sys

import pytest
from click.testing import CliRunner

from client_shim.verify import command, table
from client_shim.verify.compare import Comparison, Difference, LineResult, StepResult
from fdt import doctor, runs
from hfdt.cli import main as hfdt
from nfdt.cli import main as nfdt

FIT = """
import atexit, os, sys
atexit.register(print, "at exit"), print("before")
os.write(1, b"from C\\n")
import keras, numpy as np
model = keras.Sequential([keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(np.ones((10, 3), "float32"), np.ones((10, 2), "float32"), batch_size=4)
"""


def call(command, *argv):
    ended = CliRunner().invoke(command, list(argv))
    return ended, [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.parametrize("found", [True, None, False])
def test_doctor(found, monkeypatch):
    checks = [doctor.Check("Python", "3.11", True), doctor.Check("thing", "", found, "install it")]
    monkeypatch.setattr(doctor, "common_checks", lambda: checks)
    ended, (told,) = call(nfdt, "doctor", "--json")
    assert told == {
        "command": "nfdt doctor",
        "ok": found is not False,
        "checks": [
            {"component": "Python", "found": "3.11", "ok": True, "advice": ""},
            {"component": "thing", "found": "", "ok": found, "advice": "install it"},
        ],
    }
    assert (ended.exit_code, ended.stderr) == (0 if told["ok"] else 1, "")


def test_doctor_installs_nothing_then():
    ended, told = call(hfdt, "doctor", "--json", "--install-horovod")
    assert (ended.exit_code, told) == (2, [])
    assert "--json is for checks. Received: --install-horovod too" in ended.stderr


def test_inspect_as_a_user_runs_it(tmp_path):
    (tmp_path / "train.py").write_text(FIT)
    argv = [sys.executable, "-m", "hfdt", "inspect", "--json", "--no-cost", "-np", "4", "train.py"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    (line,) = done.stdout.splitlines()
    told = json.loads(line)
    assert (done.returncode, done.stderr.splitlines()[:2]) == (0, ["before", "from C"])
    assert done.stderr.splitlines()[-1] == "at exit"
    assert {name: told[name] for name in ("command", "script", "capture")} == {
        "command": "hfdt inspect",
        "script": "train.py",
        "capture": "extract",
    }
    (found,) = told["calls"]
    assert (found["line"], found["capture"]) == (8, "extract")
    fit = told["fit"]
    assert (fit["parameters"], fit["samples"], fit["batch_size"], fit["steps_per_epoch"]) == (8, 10, 4, 3)
    assert fit["step_bytes"] == 2 * 3 / 4 * 32 and fit["step_seconds"] > 0
    assert fit["compressed"]["fp16"] == [24.0]


def test_inspect_without_a_fit(tmp_path):
    (tmp_path / "loop.py").write_text("optimizer.apply_gradients(zip(g, v))\n")
    (tmp_path / "none.py").write_text("print('no training')\n")
    (tmp_path / "fails.py").write_text("1 / 0\n")
    _, (loop,) = call(hfdt, "inspect", "--json", str(tmp_path / "loop.py"))
    assert (loop["capture"], loop["calls"][0]["line"], loop["fit"]) == ("replica", 1, None)
    _, (none,) = call(nfdt, "inspect", "--json", str(tmp_path / "none.py"))
    assert (none["command"], none["capture"], none["calls"], none["fit"]) == ("nfdt inspect", "extract", [], None)
    ended, told = call(nfdt, "inspect", "--json", str(tmp_path / "fails.py"))
    assert (ended.exit_code, told) == (1, [])


@pytest.mark.parametrize("outcome", [table.EQUAL, table.UNPROVEN])
def test_verify(outcome, tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.touch()
    step = StepResult("a.py:3", None, Difference("update", 1.0, math.inf, 0.5), Difference("weights", 1, 0, 1), ())
    compared = Comparison([step], [LineResult(1, "loss 1", "loss 1", None)], ["left out"])
    asked = []

    def found(request):
        asked.append(request)
        return compared, table.Verdict(outcome, "the text"), ["a note"]

    monkeypatch.setattr(command, "_compared", found)
    ended, (told,) = call(hfdt, "verify", "--json", "--bucket-mb", "8", str(script))
    assert ended.exit_code == (outcome != table.EQUAL)
    assert list(asked[0].options) == ["--bucket-mb", "8"]  # of `run`, which has no --json
    assert (told["command"], told["outcome"], told["text"]) == ("hfdt verify", outcome, "the text")
    assert told["steps"][0]["update"] == {"what": "update", "alone": 1.0, "difference": None, "noise": 0.5}
    assert (told["steps"][0]["ok"], told["lines"][0]["ok"], told["notes"]) == (False, False, ["a note", "left out"])


@pytest.fixture
def ended_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = runs.create("hfdt", "train.py", ["python", "-m", "hfdt", "run", "--detach", "train.py"])
    (tmp_path / "mine").mkdir()
    run.output.write_text("one\ntwo\nno end")
    run.write("logs", {"directory": str(tmp_path / "mine")})
    (tmp_path / "mine" / "records.jsonl").write_text('{"kind": "job"}\n{"kind": "epoch", "logs": {}}\n{"kind": "half')
    run.write("end", {"code": 3})
    return run


def test_attach(ended_run):
    ended, told = call(nfdt, "attach", "--json")
    (run,) = told
    assert (run["name"], run["state"], run["over"], run["exit_code"]) == ("train-1", "ended: exit code 3", True, 3)
    assert run["command"] == ["hfdt", "run", "--detach", "train.py"]

    ended, told = call(nfdt, "attach", "--json", "train-1")
    end = {"kind": "end", "exit_code": 3, "state": "ended: exit code 3"}
    text = [{"kind": "output", "text": line} for line in ("one", "two", "no end")]
    assert ended.exit_code == 3
    assert sorted(map(str, told)) == sorted(map(str, [*text, {"kind": "job"}, {"kind": "epoch", "logs": {}}, end]))
    assert told[-1] == end

    _, told = call(nfdt, "attach", "--json", "-n", "1", "train-1")
    assert [each.get("text", each["kind"]) for each in told] == ["no end", "end"]  # the last record is not complete

    ended, told = call(nfdt, "attach", "--json", "--remove", "train-1")
    assert (ended.exit_code, told) == (2, [])
