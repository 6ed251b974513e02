"""`hfdt.run`, `hfdt.fit` and nfdt's: results, typed errors, and that nothing is left running."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import hfdt
import nfdt
from frontends import api

pytestmark = pytest.mark.timeout(600)  # on a busy machine each of its programs takes a minute

WAITS = "import time\nprint('waits', flush=True)\ntime.sleep(600)\n"

FIT = """
import numpy as np, keras
from .layers import Twice
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Twice(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
model.fit(x, x[:, :1], epochs=2, batch_size=16, verbose=0, validation_split=0.5)
print("trained by", __spec__.name)
"""

PROGRAM = """
import json, threading
import numpy as np, keras
import hfdt, nfdt
from frontends import fitting

own = keras.Model.fit

def made():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Twice(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

class Twice(keras.layers.Layer):
    def call(self, x):
        return 2 * x

class Raises(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyError("of the callback")

class Tells(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("trains", flush=True)

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
given = dict(epochs=2, batch_size=16, shuffle=False, verbose=0)
alone, divided, served, said = made(), made(), made(), {}
said["alone"] = alone.fit(x, x[:, :1], **given).history["loss"]
history = hfdt.fit(divided, x, x[:, :1], np=2, **given)
said["divided"], said["kind"] = history.history["loss"], type(history).__name__
said["off"] = max(float(abs(a - b).max()) for a, b in zip(alone.get_weights(), divided.get_weights()))

def in_a_thread():
    try:
        nfdt.fit(served, x, x[:, :1], np=1, callbacks=[Raises()], **given)
    except KeyError as error:
        said["raised"] = str(error)

thread = threading.Thread(target=in_a_thread)
thread.start()
while not fitting._TRAINING.locked() and thread.is_alive():
    thread.join(0.01)
try:
    hfdt.fit(divided, x, np=2)
except hfdt.UsageError as error:
    said["second"] = str(error)
thread.join()
print(json.dumps(said), flush=True)
try:
    hfdt.fit(divided, x, x[:, :1], np=1, epochs=10**9, batch_size=16, verbose=0, callbacks=[Tells()])
except KeyboardInterrupt:
    print("interrupted", keras.Model.fit is own, flush=True)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gone(processes):
    """Return whether all of these processes end in bounded time."""
    return not psutil.wait_procs(processes, timeout=60)[1]


@contextlib.contextmanager
def begun(program, says):
    """Start a Python program; give it, and the processes that it has started once a line begins with `says`."""
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as popen:
        lines = []
        try:
            for line in popen.stdout:
                lines.append(line)
                if line.startswith(says):
                    break
            yield popen, psutil.Process(popen.pid).children(recursive=True), lines
        finally:
            if popen.poll() is None:
                popen.kill()


def test_fit_trains_the_model_in_place_and_leaves_nothing_running(folder):
    with begun(PROGRAM, "trains") as (popen, children, lines):
        said = json.loads(lines[0])
        assert said["divided"] == pytest.approx(said["alone"], rel=1e-5)
        assert said["off"] < 1e-5 and said["kind"] == "History"
        assert said["raised"] == "'of the callback'"
        assert said["second"].startswith("hfdt.fit trains one model at a time; another call")
        assert children
        popen.send_signal(signal.SIGINT)
        rest = popen.stdout.read()
    assert (rest.splitlines()[-1], popen.returncode) == ("interrupted True", 0)
    assert gone(children)


def test_run_returns_the_history_and_the_records_of_a_module(folder, capfd):
    (folder / "package").mkdir()
    (folder / "package" / "train.py").write_text(FIT)
    (folder / "package" / "layers.py").write_text(
        "import keras\nclass Twice(keras.layers.Layer):\n    def call(self, x):\n        return 2 * x\n"
    )
    out = io.StringIO()
    with contextlib.redirect_stdout(out):  # as in a notebook: no file
        result = hfdt.run(module="package.train", np=1, log_dir=folder / "logs")
    assert out.getvalue().splitlines()[-1] == "trained by package.train"
    assert result.exit_code == 0
    assert {name: len(values) for name, values in result.history.items()} == {"loss": 2, "val_loss": 2}
    kinds = [record["kind"] for record in result.records]
    assert kinds[-1] == "summary" and kinds.count("epoch") == 2
    assert result.records[-1]["algorithms"] == ["allreduce"]
    kept = Path("logs/records.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in kept] == kinds


def test_errors_have_types(folder):
    Path("ends.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    Path("tape.py").write_text("optimizer.apply_gradients(zip(gradients, variables))\n")
    with pytest.raises(hfdt.ScriptFailed, match=r"ends.py ended with exit code 3") as failed:
        hfdt.run("ends.py", args=[1, "a b"])
    assert failed.value.result.exit_code == 3
    assert hfdt.run("ends.py", check=False).history == {}
    with pytest.raises(hfdt.UsageError, match="^-np must be a number of workers, 1 or more. Received: 0$"):
        hfdt.run("ends.py", np=0)
    with pytest.raises(hfdt.UsageError, match="'all' is not one of 'global', 'per-worker'"):
        hfdt.run("ends.py", batch="all")
    with pytest.raises(hfdt.UsageError, match="--batch is for scripts that train by fit alone"):
        hfdt.run("tape.py", batch="per-worker")
    with pytest.raises(nfdt.UsageError, match="nfdt has no option 'lgo_dir'; did you mean log_dir?"):
        nfdt.run("ends.py", lgo_dir="x")
    with pytest.raises(nfdt.UsageError, match="nfdt.run takes a script, or module instead. Received: ends.py too"):
        nfdt.run("ends.py", module="package")
    with pytest.raises(hfdt.UsageError, match="args must be a list, one item for each argument. Received: '--seed 1'"):
        hfdt.run("ends.py", args="--seed 1")
    with pytest.raises(hfdt.UsageError, match="detach is an option of the command alone"):
        hfdt.run("ends.py", detach=True)
    with pytest.raises(hfdt.UsageError, match="hfdt.fit needs a model of Keras. Received: int"):
        hfdt.fit(3)


def test_of_a_command_that_was_killed_the_complete_records_and_the_signal_are_returned(monkeypatch):
    def killed(argv, directory):
        Path(directory, "records.jsonl").write_text('{"kind": "job", "job": "1"}\n{"kind": "ep')
        return -signal.SIGKILL

    monkeypatch.setattr(api, "_waited_for", killed)
    result = hfdt.run("train.py", check=False)
    assert (result.exit_code, result.records) == (137, [{"kind": "job", "job": "1"}])
    with pytest.raises(hfdt.ScriptFailed, match="train.py ended with exit code 137"):
        hfdt.run("train.py")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_ends_with_the_program_that_started_it(number, folder):
    Path("waits.py").write_text(WAITS)
    with begun("import hfdt; hfdt.run('waits.py')", "waits") as (popen, children, _):
        assert children
        os.kill(popen.pid, number)
        popen.stdout.read()
    assert popen.returncode == -number
    assert gone(children)


def test_importing_the_package_is_light():
    code = (
        "import sys, hfdt, nfdt; print(sorted({'click', 'numpy', 'grpc', 'tensorflow', 'frontends'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
