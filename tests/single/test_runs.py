"""Records of detached runs: names, access rights, living processes, the run supervisor, and the output of `attach`."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fdt import runs
from fdt.cli import RunRequest
from fdt.cli.detach import Follower, registered, taken
from fdt.errors import UsageError, UserError
from fdt.report import JobSummary, Reporter, Reporters
from fdt.report.records import DetachedReporter
from fdt.rpc.session_pb2 import EpochEnd, Event, Progress
from fdt.runs import ProcessIdentity


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def kept():
    """Run `python -c code` under a run supervisor to its end."""

    def run(code):
        made = runs.create("hfdt", "a.py", [sys.executable, "-c", code])
        with open(made.output, "wb") as out:
            process = subprocess.run(
                [sys.executable, "-m", "fdt.runs", str(made.directory)], stdout=out, stderr=out, timeout=100
            )
        assert process.returncode == 0
        return made

    return run


def test_names_are_the_scripts_and_a_number():
    names = [runs.create("hfdt", script, []).name for script in ("x/train.py", "train.py", "-a b.py", "...")]
    assert names == ["train-1", "train-2", "a-b-1", "script-1"]
    assert [run.name for run in runs.runs()] == names
    runs.find("train-2").write("end", {"code": 0})
    runs.find("train-2").remove()
    assert runs.create("nfdt", "train.py", []).name == "train-2"
    with pytest.raises(UsageError, match="no such run"):
        runs.find("../train-1")


def test_only_what_is_this_users_alone_is_a_run(state):
    ours, strange = runs.create("hfdt", "a.py", []), runs.create("hfdt", "b.py", [])
    strange.directory.chmod(0o755)
    (runs.home() / "c-1").symlink_to(ours.directory)
    assert [run.name for run in runs.runs()] == ["a-1"]
    runs.home().chmod(0o777)
    with pytest.raises(UserError, match="this user's alone"):
        runs.create("hfdt", "a.py", [])


def test_another_process_of_the_same_number_is_not_it():
    me = ProcessIdentity.of(os.getpid())
    assert me.alive()
    assert not ProcessIdentity(me.pid, "another boot 7").alive()
    ProcessIdentity(me.pid, "another boot 7").signal(signal.SIGKILL)  # reaches nobody


@pytest.mark.parametrize("error", [AttributeError, PermissionError, OSError])
def test_a_process_is_signalled_where_there_are_no_descriptors_of_any(monkeypatch, error):
    def missing(pid):
        raise error

    monkeypatch.setattr(os, "pidfd_open", missing)
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        try:
            who = ProcessIdentity.of(process.pid)
            ProcessIdentity(process.pid, "another boot 7").signal(signal.SIGTERM)  # reaches nobody
            who.signal(signal.SIGINT)
            assert process.wait(60) != -signal.SIGKILL
        finally:
            process.kill()
    who.signal(signal.SIGKILL)  # gone: nobody


@pytest.mark.parametrize(
    ("wall_s", "since_start_s", "over"), [(7200, 5, False), (-7200, 5, False), (0, 61, True), (0, -3600, True)]
)
def test_a_run_whose_keeper_never_came_is_over_by_no_wall_clock(monkeypatch, wall_s, since_start_s, over):
    """The time since the machine's start is below the recorded one when the machine was started again."""
    run, wall, monotonic = runs.create("hfdt", "a.py", []), time.time(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: wall + wall_s)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic + since_start_s)
    assert run.over() is over


@pytest.mark.parametrize(
    ("code", "shell", "says"),
    [
        ("print(input)", 0, "done"),
        ("import os; os._exit(7)", 7, "ended: exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", 137, "ended: signal 9 (SIGKILL)"),
    ],
)
def test_the_keeper_notes_how_it_ended(kept, code, shell, says):
    run = kept(code)
    assert (run.over(), run.exit_code(), run.state()) == (True, shell, says)
    assert run.killed() is (shell == 137)


def test_the_client_has_no_terminal_no_hangup_and_may_be_interrupted(kept):
    run = kept(
        "import os, signal, sys\n"
        "print(sys.stdin.read() == '', signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, end=' ')\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, os.environ['FDT_DETACHED'])"
    )
    assert run.output.read_text() == f"True True True {run.directory}\n"


def test_a_run_whose_processes_are_gone_unnoted_is_lost():
    run = runs.create("hfdt", "a.py", [])
    assert run.state() == "starting"
    run.write("processes", {"keeper": {"pid": os.getpid(), "started": "another boot 7"}})
    assert (run.state(), run.exit_code(), run.killed()) == ("lost", 1, True)
    me = ProcessIdentity.of(os.getpid())
    run.write("processes", {"client": vars(me)})
    run.write("progress", {"begun": True, "at": "3/10"})
    assert (run.state(), run.at()) == ("training", "3/10")
    with pytest.raises(UserError, match="only a run that has ended can be removed"):
        run.remove()
    run.write("run", {**run.read("run"), "host": "elsewhere"})
    assert run.state() == "training", "this machine's name has changed since"
    run.write("run", {**run.read("run"), "space": "another boot"})
    assert run.state() == "on elsewhere"


def test_the_variable_marks_one_process_only(monkeypatch):
    run = runs.create("hfdt", "a.py", [])
    monkeypatch.setenv(runs.VARIABLE, str(run.directory))
    request, found = taken(RunRequest("hfdt", detach=True))
    assert (found.name, request.log_dir) == (run.name, run.logs)
    assert taken(RunRequest("hfdt", detach=True)) == (RunRequest("hfdt", detach=True), None)


@pytest.mark.parametrize(("lines", "shown"), [(None, "a\nb\nc"), (0, ""), (1, "c"), (2, "b\nc"), (9, "a\nb\nc")])
def test_the_last_lines_are_shown(lines, shown):
    run = runs.create("hfdt", "a.py", [])
    run.output.write_bytes(b"a\nb\nc")
    run.write("end", {"code": 0})
    out = io.StringIO()
    assert Follower(run, out, lines).follow()
    assert out.getvalue() == shown


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_on_a_terminal_a_line_below_says_how_training_stands(monkeypatch):
    run = runs.create("hfdt", "a.py", [])
    run.output.write_text("printed\n")
    run.write("progress", {"line": "Epoch 1/2  5/10"})
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    follower = Follower(run, terminal)
    assert not follower.follow()
    assert terminal.getvalue().endswith("printed\n\rEpoch 1/2  5/10")
    run.write("end", {"code": 0})
    assert follower.follow()
    assert terminal.getvalue().endswith("\r")
    assert sys.stdout is terminal


def test_how_training_stands_is_noted():
    noted = []
    away = DetachedReporter(False, lambda now: noted.append(dict(now)), clock=iter(range(0, 1000, 10)).__next__)
    away.job(JobSummary("j", epochs=2, steps_per_epoch=10, validation=True))
    away.epoch_begin(0)
    assert noted[-1]["begun"] is False
    away.event(Event(progress=Progress(epoch=0, step=5, samples=320)))
    assert (noted[-1]["begun"], noted[-1]["at"]) == (True, "1/2")
    assert noted[-1]["line"].startswith("Epoch 1/2  ━━━━━━━━━━──────────  5/10".replace("─  5", "─ 5"))
    away.event(Event(epoch_end=EpochEnd(epoch=0, steps=10)))
    assert "validating" in noted[-1]["line"]
    away.job_end()
    assert noted[-1]["line"] == ""
    assert Reporters([away]).awaits_training()
    assert not Reporters([Reporter()]).awaits_training()
    json.dumps(noted)


@pytest.mark.parametrize(("asynchronous", "at"), [(False, "step 1,200"), (True, "step 1,200 of worker 0")])
def test_how_a_loop_of_the_scripts_own_stands_is_noted(asynchronous, at):
    noted = []
    DetachedReporter(asynchronous, lambda now: noted.append(dict(now))).training(1200)
    assert noted == [{"begun": True, "at": at, "line": at}]


def test_a_directory_that_cannot_be_made_is_one_line(state, monkeypatch):
    state.write_text("a file")
    with pytest.raises(UserError, match="XDG_STATE_HOME"):
        runs.create("hfdt", "a.py", [])


def test_without_a_home_directory_runs_are_not_registered_and_attach_says_what_to_set(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with registered(RunRequest("hfdt", script="train.py"), None, tmp_path) as run:
        assert run is None
    for listed in (runs.runs, lambda: runs.create("hfdt", "train.py", [])):
        with pytest.raises(UserError, match="has no home directory: set XDG_STATE_HOME"):
            listed()


def test_the_keeper_passes_on_what_ends_it():
    run = runs.create("hfdt", "a.py", [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"])
    with open(run.output, "wb") as out:
        process = subprocess.Popen([sys.executable, "-m", runs.__name__, str(run.directory)], stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 60
        while not (run.read("processes") and "up" in run.output.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    assert run.exit_code() == 128 + signal.SIGTERM


def test_what_ends_the_keeper_before_there_is_a_client_is_passed_on_late():
    run = runs.create("hfdt", "a.py", [sys.executable, "-c", "import time; time.sleep(30)"])
    code = """
import os, signal, subprocess, sys
from fdt import runs
start = subprocess.Popen
def late(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGTERM)
    return start(*args, **kwargs)
subprocess.Popen = late
runs.main(sys.argv[1])
"""
    subprocess.run([sys.executable, "-c", code, str(run.directory)], timeout=100, check=True)
    assert run.exit_code() == 128 + signal.SIGTERM
