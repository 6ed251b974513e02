"""Preemption: what a signal means to a run that is saved, at each moment, and what the command then exits with."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from client_shim import preemption as module
from client_shim.fit import fit_remotely
from client_shim.imports import intercepted
from client_shim.preemption import Preemption, preemptible
from client_shim.state import ScriptRun, Settings
from fdt.blobs import LocalBlobs
from fdt.cli import RunRequest, kept
from fdt.cli.program import program
from fdt.ending import ended_by_signals
from fdt.errors import EXIT_RESUME
from fdt.launch import Task, hosts_mpirun
from fdt.launch.hosts import Host
from fdt.launch.mpirun import MpirunLauncher
from fdt.report import Reporter, Reporters
from fdt.rpc import session_pb2 as pb
from fdt.rundir import RunDir
from fdt.signals import Ended, Preempted, held_back, released, shielded
from tests.single.fake_engine import FakeClient, FakeConversation

pytestmark = pytest.mark.filterwarnings("default")
AGENT = "PRTE_MCA_prte_launch_agent"

X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")


class Notes(Reporter):
    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


@pytest.fixture
def preemption():
    with ended_by_signals():
        made = Preemption(60.0)
        with preemptible(made):
            yield made


@pytest.fixture
def now(monkeypatch):
    """A clock that the test sets."""
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    return clock


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_outside_of_fit_the_run_ends_at_once_with_its_code(preemption, number):
    with pytest.raises(Preempted, match="75"):
        signal.raise_signal(number)
    assert preemption.error().message == f"preempted by {number.name}: the run is not trained yet"


def test_it_is_held_back_where_other_signals_are(preemption):
    reached = []
    with pytest.raises(Preempted):
        with held_back():
            signal.raise_signal(signal.SIGTERM)
            reached.append("behind it")
        reached.append("behind the end")
    assert reached == ["behind it"]


def test_in_fit_it_is_a_request_that_a_callback_does_not_notice(preemption):
    woken, reached = [], []
    with pytest.raises(Preempted), held_back(lambda: woken.append(1)), preemption.training():
        with released():
            signal.raise_signal(signal.SIGTERM)
            reached.append("the callback goes on")
        assert woken and preemption.asked is signal.SIGTERM
    assert reached


def test_signals_of_one_moment_are_one_and_a_later_one_ends_as_ever(preemption, now):
    with pytest.raises(Ended) as ended, held_back(), preemption.training():
        for _ in range(3):  # from the batch system, and passed on by parents
            signal.raise_signal(signal.SIGTERM)
        assert preemption.asked is signal.SIGTERM
        now[0] += 5
        signal.raise_signal(signal.SIGUSR1)
    assert ended.value.code == 128 + signal.SIGTERM and not isinstance(ended.value, Preempted)


def test_ctrl_c_ends_a_preempted_run_at_once(preemption):
    with pytest.raises(KeyboardInterrupt), preemption.training():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)


def test_a_finalizer_that_drops_it_does_not_lose_it(preemption):
    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Preempted):
        Finalized()
        time.sleep(60)  # a guard: it is raised at this line


def test_after_the_grace_period_it_ends_without_a_commit():
    short = Preemption(0.0)
    short.saved = "the end of epoch 2 of fit 1"
    with ended_by_signals(), preemptible(short), pytest.raises(Preempted), held_back(), preempted(short):
        deadline = time.monotonic() + 60
        while short._ending is None and time.monotonic() < deadline:
            os.sched_yield()
        raise_when_held()
    assert "no later state was ready; the run is saved up to the end of epoch 2 of fit 1" in short.error().message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_end_of_the_grace_period_reaches_a_run_whose_script_handles_the_other_signal(number):
    short, other = Preemption(0.0), signal.SIGUSR1 if number == signal.SIGTERM else signal.SIGTERM
    with ended_by_signals(), preemptible(short):
        before = signal.signal(other, lambda *_: None)
        with pytest.raises(Preempted) as ended, short.training():
            signal.raise_signal(number)
            time.sleep(60)  # a guard: the end of the grace period ends it
        signal.signal(other, before)
    assert ended.value.message.startswith(f"preempted by {number.name}: within 0 s no later state was ready")


@contextlib.contextmanager
def preempted(preemption):
    with preemption.training():
        signal.raise_signal(signal.SIGTERM)
        yield


def raise_when_held():
    from fdt.signals import raise_held

    raise_held()


def test_a_handler_of_the_scripts_takes_its_place(preemption):
    seen = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    signal.raise_signal(signal.SIGUSR1)
    assert seen == [signal.SIGUSR1] and preemption.asked is None
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_without_a_directory_sigusr1_is_one_line_and_sigterm_is_as_ever(capfd):
    with ended_by_signals(), preemptible(None):
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(Ended) as ended:
            signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    assert capfd.readouterr().err.count("has no --run-dir; it continues\n") == 1


def test_the_command_prints_one_line_and_exits_with_the_code(capsys, tmp_path):
    (tmp_path / "train.py").write_text("")
    request = RunRequest("hfdt", script=str(tmp_path / "train.py"), run_dir=tmp_path / "run")

    def body(directory):
        with preemptible(Preemption()):
            signal.raise_signal(signal.SIGTERM)
        return 0

    group = program("hfdt", "", {})
    group.command("run")(lambda: kept(request, [], body))
    with pytest.raises(SystemExit) as ended:
        group(["run"])
    assert ended.value.code == EXIT_RESUME == 75
    again, why = capsys.readouterr().err.splitlines()
    assert again == f"hfdt: to continue this run: hfdt run --resume {tmp_path / 'run'}"
    assert why == "hfdt: preempted by SIGTERM: the run is not trained yet"
    RunDir.open(tmp_path / "run", "hfdt").close(ended_well=True)  # a run that has trained nothing is resumed, too


def test_members_start_where_a_batch_systems_signals_do_not_reach_them():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with shielded():
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before | {signal.SIGTERM, signal.SIGUSR1}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_mpiruns_daemons_are_started_so_too(monkeypatch):
    """Slurm signals them on their nodes, and a daemon that ends takes its ranks with it before their commit."""
    command = ["sh", "-c", "kill -TERM $$; kill -USR1 $$; echo lives"]
    argv = [sys.executable, "-m", "fdt.signals", *command]
    assert subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout == "lives\n"
    around = [sys.executable, "-I", "-S", hosts_mpirun.__file__, "daemon", command[-1]]  # with filters
    env = {**os.environ, "SLURM_JOB_ID": "7"}
    assert subprocess.run(around, env=env, capture_output=True, text=True, timeout=300).stdout == "lives\n"
    launcher = MpirunLauncher(Path("logs"), [Host("node1", 1)])
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert AGENT not in launcher._variables(Task("worker", (), 1))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert launcher._variables(Task("worker", (), 1))[AGENT] == f"{sys.executable} -m fdt.signals prted"


# -- in a fit ----------------------------------------------------------------------------------------------------------
class Signalled(FakeConversation):
    """A signal arrives when a command of this kind is sent. `suspendable`: as Ready says. `extra`: further events."""

    kind, suspendable = "epoch", True
    broken = False

    def __init__(self, client):
        super().__init__(client)
        self.inner, self.extra = FakeConversation.events(self), []

    def interrupt(self):
        self.broken = True

    def events(self):
        while not self.broken:
            event = self.extra.pop() if self.extra else next(self.inner)
            if event.HasField("ready"):
                event.ready.suspendable = self.suspendable
            yield event
        self.broken = False

    def send(self, command):
        kind = command.WhichOneof("kind")
        if kind == "suspend":
            self.client.suspended += 1
            self.suspend()
            return
        super().send(command)
        if kind == self.kind and self.client.due:
            self.client.due = False
            signal.raise_signal(signal.SIGTERM)

    def suspend(self):
        pass


class SignalledClient(FakeClient):
    def __init__(self, blobs, conversation, due=True):
        super().__init__(blobs)
        self.due, self.conversation, self.suspended = due, conversation, 0

    def train(self):
        return self.conversation(self)


def script(epochs=3):
    keras = importlib.import_module("keras")
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    history = model.fit(X, X.sum(axis=1), batch_size=20, epochs=epochs, verbose=0)
    return history.history["loss"], [weights.tolist() for weights in model.get_weights()]


def run(tmp_path, conversation, preemption, *, resumed=False, due=True):
    (tmp_path / "blobs").mkdir(exist_ok=True)
    client, notes = SignalledClient(LocalBlobs(tmp_path / "blobs"), conversation, due), Notes()
    where = tmp_path / "run"
    directory = RunDir.open(where, "hfdt") if resumed else RunDir.create(where, "hfdt", [], __file__, [])
    state = ScriptRun(client, Settings(), Reporters([notes]), directory=directory, preemption=preemption)
    try:
        with intercepted(lambda *args: fit_remotely(state, *args)):
            return client, notes.lines, script()
    except Preempted:
        return client, notes.lines, None
    finally:
        directory.close(ended_well=False, keep=True)


class AtEpochsEnd(Signalled):
    suspendable = False


class AtStart(Signalled):
    kind = "setup"


@pytest.mark.parametrize("conversation", [AtEpochsEnd, AtStart, Signalled])
def test_a_preempted_fit_goes_on_to_the_same_numbers(tmp_path, preemption, conversation):
    (tmp_path / "alone").mkdir()
    _, _, expected = run(tmp_path / "alone", Signalled, Preemption(), due=False)
    client, notes, found = run(tmp_path, conversation, preemption)
    assert found is None, "it has ended"
    saved = "the end of epoch 1 of fit 1" if conversation is not AtStart else ""
    assert preemption.saved == saved
    assert client.suspended == (conversation is Signalled)
    assert "finish" not in client.sent, "its ranks may have the request, which would end epochs of the next job"
    if conversation is not AtStart:
        assert any("SIGTERM: the run is saved" in line for line in notes)
    _, _, found = run(tmp_path, Signalled, Preemption(), resumed=True, due=False)
    assert found == expected


def test_a_commit_within_the_epoch_ends_the_run(tmp_path, preemption):
    class Commits(Signalled):
        def suspend(self):
            state, blobs = self.worker._state(), self.client.blobs
            metrics = blobs.put_arrays(self.worker.trainable.metric_arrays())
            self.extra = [pb.Event(commit=pb.Commit(epoch=0, step=2, samples=40, state=state, metrics=metrics))]

    _, _, found = run(tmp_path, Commits, preemption)
    assert found is None and preemption.saved == "step 2 of epoch 1 of fit 1"
    assert (tmp_path / "run" / "fit-0001-step.ckpt").exists()


def test_a_lost_worker_of_a_preempted_run_is_part_of_the_preemption(tmp_path, preemption):
    class Lost(Signalled):
        def suspend(self):
            self.extra = [pb.Event(failed=pb.Failed(message="worker 1 was lost: signal 9"))]

    assert run(tmp_path, Lost, preemption)[2] is None
    assert preemption.error().code == EXIT_RESUME


IN_C = """
import ctypes, os, signal, sys, threading, time
from client_shim.stuck import ended_when_stuck
from fdt.ending import ended_by_signals
mutex, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)

def tell():  # once the main thread stays in the last line
    before = now = None
    while now is None or now != before or now[0] != int(sys.argv[2]):
        time.sleep(0.2)
        frame = sys._current_frames()[threading.main_thread().ident]
        before, now = now, (frame.f_lineno, frame.f_lasti)
    print("begun", flush=True)

threading.Thread(target=tell, daemon=True).start()
with ended_by_signals(), ended_when_stuck(lambda number: os._exit(100 + number), 0.3):
    if sys.argv[1] == "own":
        signal.signal(signal.SIGTERM, lambda *_: None)
        threading.Timer(3.0, os._exit, [7]).start()
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # waits for ever, and no signal handler runs
"""


@pytest.mark.parametrize(("whose", "code"), [("ours", 100 + signal.SIGTERM), ("own", 7)])
def test_a_main_thread_in_c_does_not_keep_a_signal_from_ending_the_command(whose, code):
    last = IN_C.rstrip().count("\n") + 1
    running = subprocess.Popen([sys.executable, "-c", IN_C, whose, str(last)], stdout=subprocess.PIPE)
    with running:
        running.stdout.readline()
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == code
