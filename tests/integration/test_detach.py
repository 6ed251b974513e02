"""A run without a terminal: started, detached, attached, ended; and one whose client is killed."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fdt import runs
from fdt.cli.detach import stop

SCRIPT = str(Path(__file__).parent / "scripts" / "away.py")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield
    for run in runs.runs():
        stop(run)


def argv(engine, *words):
    return [sys.executable, "-m", engine, *words]


def call(engine, *words):
    return subprocess.run(argv(engine, *words), capture_output=True, text=True, timeout=150, check=False)


def still_there(processes):
    """Those that have not ended within 30 seconds; one that only waits to be reaped has."""
    _, alive = psutil.wait_procs(processes, 30)
    left = []
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            left += [process] if process.status() != psutil.STATUS_ZOMBIE else []
    return left


def attached_until_an_epoch(name):
    """Return the lines shown until the first epoch; Ctrl-C then leaves the run."""
    attached = subprocess.Popen(argv("nfdt", "attach", name), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen = []
    for line in attached.stdout:
        seen.append(line)
        if line.startswith("Epoch 1/"):
            break
    attached.send_signal(signal.SIGINT)
    _, err = attached.communicate(timeout=150)
    assert attached.returncode == 130
    assert f"{name} continues" in err
    return seen


def test_a_detached_run_is_taken_up_again_and_ended(state):
    started = subprocess.Popen(
        argv("hfdt", "run", "--detach", "-np", "2", SCRIPT, "100000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    out, err = started.communicate(timeout=150)
    assert (started.returncode, out) == (0, "away-1\n"), err
    assert "input: EOFError" in err, "what it prints before it trains is shown"
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, signal.SIGHUP)  # a closed terminal's: nobody of the run is left in its session
    run = runs.find("away-1")
    client = psutil.Process(run.client().pid)
    assert os.getsid(client.pid) != started.pid
    client.send_signal(signal.SIGHUP)  # or one that comes all the same
    assert run.directory.stat().st_mode & 0o77 == 0

    seen = attached_until_an_epoch("away-1")
    assert seen[0] == "input: EOFError\n"
    assert seen[-1].startswith("Epoch 1/100000")
    assert "\x1b" not in run.output.read_text()

    (head, row) = call("hfdt", "attach").stdout.splitlines()
    assert head.split() == ["RUN", "STATE", "AT", "SINCE", "COMMAND"]
    assert row.startswith("away-1  training  ")
    assert "/100000 " in row

    below = client.children(recursive=True)
    stopped = call("hfdt", "attach", "--stop", "away-1")
    assert (stopped.returncode, stopped.stderr) == (0, "hfdt: away-1: ended: exit code 130\n")
    assert "the script was interrupted" in run.output.read_text(), "it may save what it has"
    assert not still_there(below)
    assert call("hfdt", "attach", "-n", "1", "away-1").returncode == 130
    assert call("hfdt", "attach", "--remove", "away-1").returncode == 0
    assert "no detached runs" in call("hfdt", "attach").stdout


def test_a_killed_client_ends_its_detached_run_and_attach_says_how_it_goes_on(state, tmp_path):
    kept = str(tmp_path / "kept")
    assert call("nfdt", "run", "--detach", "--run-dir", kept, "-np", "1", SCRIPT, "100000").stdout == "away-1\n"
    run = runs.find("away-1")
    client = psutil.Process(run.client().pid)
    below = client.children(recursive=True)
    engine = next(e for e in (p.environ().get("FDT_ENGINE", "") for p in below) if e)
    store = Path(engine.removeprefix("unix:")).parent.parent
    client.kill()
    assert not still_there(below)
    assert not store.exists()
    attached = call("nfdt", "attach", "away-1")
    assert attached.returncode == 128 + 9
    assert f"away-1 was ended by signal 9 (SIGKILL); nfdt run --resume {kept} continues" in attached.stderr
    assert run.state() == "ended: signal 9 (SIGKILL)"
