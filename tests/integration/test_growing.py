"""An elastic run of HFDT as a user has it: a script lists slots, a process joins and leaves, and the numbers stay."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.namespaces import printing, replace

HFDT = [sys.executable, "-m", "hfdt"]
SCRIPT = str(Path(__file__).parent / "scripts" / "grown.py")
LEFT = "left the run; training continues without this machine"


def read_until(lines, wanted):
    """Read lines up to one that matches; return all of them."""
    read = []
    for line in lines:
        read.append(line)
        if re.search(wanted, line):
            return "".join(read)
    raise AssertionError(f"no {wanted!r} in:\n{''.join(read)}")


def join_and_leave(run, listed, logs):
    """A process joins as a listed slot goes, so that nothing changes, and leaves."""
    call = [*HFDT, "join", (logs / "join.address").read_text().strip(), "--token-file", logs / "join.token"]
    with subprocess.Popen(call, stderr=subprocess.PIPE, text=True) as join:
        try:
            read_until(join.stderr, "may use 1 slot of this machine")
            replace(listed, "localhost:2\n")
            read_until(run.stdout, "^epoch")
            join.send_signal(signal.SIGINT)
            assert LEFT in join.stderr.read()
        finally:
            join.kill()


@pytest.mark.timeout(900)
def test_ranks_come_and_go_and_the_numbers_stay(tmp_path):
    listed, go, logs = (tmp_path / name for name in ("listed", "go", "logs"))
    listed.write_text("localhost:1\n")
    go.touch()
    options = ["--host-discovery-script", printing(listed), "--max-np", "3", "--join-at", "0", "--log-dir", logs]
    with subprocess.Popen(
        [*HFDT, "run", *options, SCRIPT, go], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        try:
            read_until(run.stdout, "^epoch 0")
            replace(listed, "localhost:2\n")
            read_until(run.stdout, "1 slot of localhost joined; .* with -np 2 instead of 1")
            read_until(run.stdout, "^epoch")
            replace(listed, "localhost:4\n")  # one more than --max-np
            read_until(run.stdout, "1 slot of localhost joined; .* with -np 3 instead of 2")
            read_until(run.stdout, "^epoch")
            join_and_leave(run, listed, logs)
            left = read_until(run.stdout, "1 slot of localhost left; .* with -np 2 instead of 3")
            assert "joined" not in left
            read_until(run.stdout, "^epoch")
            replace(listed, "localhost:1\n")
            read_until(run.stdout, "1 slot of localhost left; .* with -np 1 instead of 2")
            read_until(run.stdout, "^epoch")
            go.unlink()
            rest = run.stdout.read()
        finally:
            run.kill()
    assert run.returncode == 0, rest
    assert re.search(r"hfdt: joined: +(localhost:1 joined,\s+){2}localhost:1 left,\s+localhost:1 left", rest), rest
    weights, history = (float(re.search(f"{what}: (.*)", rest)[1]) for what in ("weights", "history"))
    assert weights < 1e-5 and history < 1e-5, rest
