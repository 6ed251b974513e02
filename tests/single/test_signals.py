"""A signal that ends the command raises once, at a safe place, and no library drops it."""

import _imp
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading

import pytest

from client_shim.script import run_script
from fdt.ending import ended_by_signals
from fdt.errors import EXIT_INTERRUPTED
from fdt.launch import Task
from fdt.signals import Ended, Preempted, held_back, raise_held, released
from fdt.supervise.processes import LaunchedProcesses

PRESS = signal.SIGINT, KeyboardInterrupt
END = signal.SIGTERM, Ended


@pytest.fixture(autouse=True)
def handlers():
    """The signals' handlers are those of before, however a test ends."""
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.getsignal(number) for number in numbers]
    with ended_by_signals():
        yield
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize(("number", "raised"), [PRESS, END])
def test_it_is_held_back_to_the_end(number, raised):
    reached = []
    with pytest.raises(raised):
        with held_back():
            signal.raise_signal(number)
            reached.append("behind it")
        reached.append("behind the end")
    assert reached == ["behind it"]


@pytest.mark.parametrize(("number", "raised"), [PRESS, END])
def test_another_thread_does_not_raise_it(number, raised):
    ended = []

    def other():
        raise_held()
        ended.append("without an exception")

    with pytest.raises(raised), held_back():
        signal.raise_signal(number)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert ended == ["without an exception"]


@pytest.mark.parametrize(("number", "raised"), [PRESS, END])
def test_it_wakes_a_wait(number, raised):
    """As client_shim/remote.py waits: for events, in a queue that the handler may put to."""
    events: queue.SimpleQueue[None] = queue.SimpleQueue()
    reached = []
    with pytest.raises(raised), held_back(lambda: events.put(None)):
        threading.Timer(0.0, os.kill, (os.getpid(), number)).start()
        events.get(timeout=60)
        reached.append("awake")
        raise_held()
        reached.append("behind it")
    assert reached == ["awake"]


@pytest.mark.parametrize(("number", "raised"), [PRESS, END])
def test_it_is_raised_at_once_in_the_scripts_code(number, raised):
    reached = []
    with held_back():
        with pytest.raises(raised), released():
            signal.raise_signal(number)
            reached.append("behind it")
        with released(), released():
            pass  # raised once
        signal.raise_signal(number)
        with pytest.raises(raised), released():
            reached.append("held, and begun all the same")
    assert not reached


def test_it_is_held_back_again_in_the_scripts_code():
    reached = []
    with held_back():
        with pytest.raises(KeyboardInterrupt), released():
            with held_back():
                signal.raise_signal(signal.SIGINT)
                reached.append("behind it")
            reached.append("behind the end")
    assert reached == ["behind it"]


def test_a_process_that_is_just_started_can_be_ended():
    running = []

    class Running:
        def stop(self, grace_s):
            running.remove(self)

    class Launcher:
        def start(self, task):
            running.append(Running())
            signal.raise_signal(signal.SIGINT)
            return running[-1]

    launched = LaunchedProcesses([(Launcher(), Task(role, (), 1)) for role in ("server", "worker")], {})
    with pytest.raises(KeyboardInterrupt):
        launched.start()
    assert len(running) == 2
    launched.stop()
    assert not running


def test_the_script_may_catch_it():
    with held_back(), released():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_what_a_library_catches_is_raised_again():
    swallow = compile("try:\n    press()\nexcept BaseException:\n    pass\n", pytest.__file__, "exec")
    reached = []
    with held_back(), pytest.raises(KeyboardInterrupt), released():
        exec(swallow, {"press": lambda: signal.raise_signal(signal.SIGINT)})
        reached.append("dropped")
    assert reached == ["dropped"]


def test_a_handler_of_the_scripts_is_called_at_once_and_stays():
    called = []
    before = signal.signal(signal.SIGINT, lambda number, frame: called.append(number))
    try:
        with held_back():
            signal.raise_signal(signal.SIGINT)
            assert called == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
    with held_back(), released():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    signal.signal(signal.SIGINT, before)


class Finalized:
    """The signal arrives in its finalizer, whose exceptions Python drops."""

    def __init__(self, number):
        self._number = number

    def __del__(self):
        signal.raise_signal(self._number)


@pytest.mark.parametrize(("number", "raised"), [PRESS, END])
def test_what_a_finalizer_drops_is_held_back_too(number, raised):
    with pytest.raises(raised), held_back(), released():
        Finalized(number)


@pytest.mark.parametrize(("number", "raised"), [PRESS, END])
def test_what_a_finalizer_drops_is_raised_at_the_next_line(number, raised):
    reached = []
    with pytest.raises(raised):
        Finalized(number)
        reached.append("the next line")
    assert not reached


@pytest.mark.parametrize(("number", "raised"), [PRESS, END])
def test_what_a_finalizer_drops_is_sent_again_to_a_wait_on_the_same_line(number, raised):
    held = threading.Lock()
    held.acquire()
    with pytest.raises(raised):
        _ = Finalized(number) and held.acquire(timeout=60)  # a guard


def test_what_c_code_prints_is_raised_again():
    reached = []
    with pytest.raises(KeyboardInterrupt):
        ctypes.pythonapi.PyRun_SimpleString(b"import signal; signal.raise_signal(signal.SIGINT)")  # prints, goes on
        reached.append("the next line")
    assert not reached


def test_what_c_code_makes_a_system_error_of_is_raised_in_its_place(tmp_path):
    """C code that calls Python with a pending exception: `_imp.acquire_lock` then fails, and has locked."""
    script = tmp_path / "script.py"
    script.write_text(
        "import _imp\n_imp.acquire_lock()\n"
        "try:\n    raise KeyboardInterrupt\n"
        "except KeyboardInterrupt as pressed:\n    raise SystemError('acquire_lock') from pressed\n"
    )
    assert run_script(str(script), []) == EXIT_INTERRUPTED
    assert not _imp.lock_held()


def test_a_system_error_with_another_cause_is_the_scripts(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("raise SystemError('boom') from ValueError('why')\n")
    assert run_script(str(script), []) == 1
    assert "SystemError: boom" in capsys.readouterr().err


def test_other_exceptions_of_a_finalizer_are_reported_as_ever(monkeypatch):
    class Broken:
        def __del__(self):
            raise ZeroDivisionError

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: seen.append(dropped.exc_type))
    with ended_by_signals():
        Broken()
    assert seen == [ZeroDivisionError]


FINALIZERS = """
import signal, weakref

class Busy:
    def __del__(self):
        for _ in range(1000):
            pass

def busy(_):
    for _ in range(1000):
        pass

print("begun", flush=True)
while True:
    each = Busy()
    reference = weakref.ref(each, busy)
    del each
"""
CATCHES = """
import time
try:
    print("begun", flush=True)
    while True:  # signal.pause() would not see a press that came just before it
        time.sleep(0.05)
except KeyboardInterrupt:
    print("saved")
"""
OWN_HANDLER = """
import queue, signal
pressed = queue.SimpleQueue()
signal.signal(signal.SIGINT, lambda number, frame: pressed.put(number))
print("begun", flush=True)
pressed.get()
print("saved")
"""
IN_EXTENSION = """
import builtins, signal, sys
plain = builtins.__import__

def press(name, *args, **kwargs):
    if sys._getframe(1).f_code.co_name == "_call_with_frames_removed":  # C code calls it, without a frame of its own
        builtins.__import__ = plain
        print("begun", flush=True)
        signal.raise_signal(signal.SIGINT)
    return plain(name, *args, **kwargs)

builtins.__import__ = press
import numpy.random
print("imported")
"""
IN_THE_COMMANDS_IMPORTS = """
import importlib.abc, signal, sys

class Press(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "click":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                print("dropped")

sys.meta_path.insert(0, Press())
"""
COMMAND = [sys.executable, "-m", "hfdt", "run"]
SHELL = ("bash", "-c", 'trap "" INT; exec "$0" "$@"')
IGNORED = [*SHELL, *COMMAND]


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [(FINALIZERS, "", 130), (CATCHES, "saved\n", 0), (OWN_HANDLER, "saved\n", 0)],
    ids=["finalizers", "catches", "own handler"],
)
@pytest.mark.parametrize("command", [COMMAND, IGNORED], ids=["foreground", "background"])
def test_one_press_is_enough_for_a_script(tmp_path, command, text, said, code):
    script = tmp_path / "script.py"
    script.write_text(text)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [*command, str(script)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout.readline() == "begun\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)  # a guard: most of them would run for ever
    assert (running.returncode, out) == (code, said)
    assert "Exception ignored" not in err
    assert err.strip().splitlines()[-1] == "hfdt: interrupted" if code else "interrupted" not in err


def test_an_extension_is_imported_before_it_raises(tmp_path):
    """Some extensions replace the exception by an ImportError, as NumPy's."""
    script = tmp_path / "script.py"
    script.write_text(IN_EXTENSION)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([*COMMAND, str(script)], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr.strip()) == (130, "begun\n", "hfdt: interrupted")


@pytest.mark.parametrize("engine", ["hfdt", "nfdt"])
@pytest.mark.parametrize("by", [(), SHELL], ids=["foreground", "background"])
@pytest.mark.parametrize("start", ["module", "script"])
def test_a_press_in_the_commands_own_imports_ends_it(tmp_path, engine, by, start):
    (tmp_path / "sitecustomize.py").write_text(IN_THE_COMMANDS_IMPORTS)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    argv = ["-m", engine] if start == "module" else ["-c", f"from {engine}.__main__ import main; main()"]
    ended = subprocess.run(
        [*by, sys.executable, *argv, "--help"], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("error", [Ended(signal.SIGTERM), Preempted(signal.SIGUSR1, "saved")])
def test_an_end_can_be_made_again_of_its_arguments_as_simpy_does(error):
    again = type(error)(*error.args)
    assert (again.number, again.code, again.message) == (error.number, error.code, error.message)
