"""A rank killed in the midst of an epoch, and a result as if nothing had happened."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = str(Path(__file__).parent / "scripts" / "twice.py")

pytestmark = pytest.mark.timeout(300)


def test_a_lost_rank_costs_time_and_nothing_else():
    command = [sys.executable, "-m", "hfdt.cli", "run", "-np", "2", "--restarts", "1", SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        for line in running.stdout:
            if line == "second 1\n":
                break
        ranks = [
            p for p in psutil.Process(running.pid).children(recursive=True) if p.cmdline()[1:] == ["-m", "hfdt.worker"]
        ]
        ranks[-1].kill()
        out, err = running.communicate()
    assert running.returncode == 0, err
    assert "was lost. Received: signal 9 (SIGKILL)" in err
    assert re.search(r"all start again from the end of epoch \d, restart 1 of 1", err)
    (summary,) = [line for line in err.splitlines() if line.startswith("hfdt: lost:")]
    assert "restarted from the end of epoch" in summary
    assert "furthest apart: 0.0" in out
