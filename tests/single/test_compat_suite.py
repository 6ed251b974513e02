"""`make compat` itself: a script that hangs is a row, and a row is made again if its sources changed."""

import subprocess

import pytest

from tests.integration.compat import __main__ as compat
from tests.integration.compat.catalogue import ALL
from tests.integration.compat.outputs import ends_apart

SCRIPT = next(iter(ALL.values()))


def ran(command, script):
    said = "".join(f"worker {rank}:    1 step, 3 samples, 0.1s\n" for rank in range(2))
    return subprocess.CompletedProcess(command, 0, "loss 1.0\n", said), set()


@pytest.mark.parametrize(
    ("hangs", "cells"),
    [
        ("alone", [compat.TIMED_OUT, "not run", "not run"]),
        ("hfdt", ["runs", compat.TIMED_OUT, "trained"]),
        ("nfdt", ["runs", "trained", compat.TIMED_OUT]),
    ],
)
def test_a_script_that_hangs_is_a_row_of_its_own(monkeypatch, hangs, cells):
    def run(command, script):
        if hangs == (command[2] if "-m" in command else "alone"):
            raise subprocess.TimeoutExpired(command, compat.TIMEOUT_S)
        return ran(command, script)

    monkeypatch.setattr(compat, "run", run)
    row = compat.row_of(SCRIPT)
    assert row[3:] == cells
    assert compat.failed(row)


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ("fdt/job.py", True),
        ("tests/integration/compat/outputs.py", True),
        ("tests/integration/compat/scripts/beside_module.py", True),
        ("tests/integration/compat/scripts/other.py", False),
        ("tests/single/test_other.py", False),
    ],
)
def test_a_row_is_made_again_when_what_it_was_made_by_changes(monkeypatch, tmp_path, changed, again):
    file = tmp_path / changed
    file.parent.mkdir(parents=True)
    file.write_text("before")
    monkeypatch.setattr(compat, "ROOT", tmp_path)
    compat.Done(tmp_path / "done").keep(SCRIPT, ["the row"])
    assert compat.Done(tmp_path / "done").row(SCRIPT) == ["the row"]
    file.write_text("after")
    assert compat.Done(tmp_path / "done").row(SCRIPT) == (None if again else ["the row"])


@pytest.mark.parametrize(
    ("last", "apart"), [("w 0.9 -1", False), ("w 0.7 -1", True), ("w nan -1", True), ("v 0.9 -1", True), ("", True)]
)
def test_what_prints_in_every_step_ends_near_what_it_does_alone(last, apart):
    assert bool(ends_apart("loss 3\nw 1 -1", f"loss 3\nloss 2\n{last}", within=0.2)) == apart
