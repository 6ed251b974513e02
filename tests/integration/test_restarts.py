"""Restarts after the loss of a rank within an epoch, or of the whole run: the result is that of an undisturbed run."""

import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

RUN = [sys.executable, "-m", "hfdt", "run"]
SCRIPT = str(Path(__file__).parent / "scripts" / "twice.py")

pytestmark = pytest.mark.timeout(300)


def same(out):
    """Are the script's two fits the same? Weights to the bit; losses are summed in parts where commits part epochs."""
    weights, losses = (float(re.search(rf"{what}: (\S+)", out)[1]) for what in ("furthest apart", "losses"))
    return weights == 0 and losses < 1e-5


def test_a_lost_rank_costs_time_and_nothing_else():
    command = [*RUN, "-np", "2", "--restarts", "1", "--commit-every", "50steps", "--shard-optimizer", SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        for line in running.stdout:
            if line == "second 1\n":
                break
        ranks = [
            p
            for p in psutil.Process(running.pid).children(recursive=True)
            if p.cmdline()[1:] == ["-m", "hfdt.worker.process"]
        ]
        ranks[-1].kill()
        out, err = running.communicate()
    assert running.returncode == 0, err
    assert "was lost: signal 9 (SIGKILL)" in err
    assert re.search(r"all workers restart from (the end|step \d+) of epoch \d, restart 1 of 1", err)
    (summary,) = [line for line in err.splitlines() if line.startswith("hfdt: lost:")]
    assert "restarted from" in summary
    assert same(out), out


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    directory = tmp_path / "run"
    command = [*RUN, "-np", "2", "--run-dir", directory, "--commit-every", "50steps", SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        for line in running.stdout:
            if line == "second 2\n":
                break
        running.kill()
        running.communicate()
    resumed = subprocess.run([*RUN, "--resume", directory], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "hfdt: fit 1 has ended before and is not trained again" in resumed.stderr
    assert re.search(r"hfdt: fit 2 continues from (the end|step \d+) of epoch [1-4] of 4", resumed.stderr)
    assert "first" not in resumed.stdout and "second 0" not in resumed.stdout
    assert same(resumed.stdout), resumed.stdout
    assert not list(directory.glob("*.ckpt"))
    again = subprocess.run([*RUN, "--resume", directory], capture_output=True, text=True, check=False)
    assert (again.returncode, len(again.stderr.splitlines())) == (1, 1), again.stderr


@pytest.mark.parametrize(("before", "after"), [("-np 2 --ps 2", "-np 1"), ("-np 1", "-np 1")])
def test_nfdt_takes_each_batch_of_a_preempted_epoch_once(tmp_path, before, after):
    nfdt, script = [sys.executable, "-m", "nfdt", "run"], Path(SCRIPT).with_name("counted.py")
    command, directory = [*nfdt, *before.split(), "--run-dir", tmp_path / "run", script], tmp_path / "run"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "begins 0\n"
        while '"kind": "progress"' not in (directory / "records.jsonl").read_text() and running.poll() is None:
            time.sleep(0.05)
        running.terminate()
        _, err = running.communicate()
    assert running.returncode == 75, err
    said = re.search(r"preempted by SIGTERM: the run is saved up to step [\d,]+ of epoch ([12]) of fit 1", err)
    assert said, err  # in epoch 2 where this process had to wait for a core
    resumed = subprocess.run(
        [*nfdt, *after.split(), "--resume", directory], capture_output=True, text=True, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    assert re.search(rf"fit 1 continues from step [\d,]+ of epoch {said[1]} of 2", resumed.stderr), resumed.stderr
    assert "rows 3000 3000\n" in resumed.stdout
    assert float(resumed.stdout.split("accuracy")[1]) > 0.9
