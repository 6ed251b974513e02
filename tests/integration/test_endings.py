"""All ways in which a run ends: bounded time, one clear line, the right exit code, and no process left."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.load import added_s, stalled_s

pytestmark = pytest.mark.timeout(300)  # on a busy machine a run's start takes a minute
SCRIPT = str(Path(__file__).parent / "scripts" / "endings.py")
FOREVER = "1000000"
PROMISED_S = 5.0  # from Ctrl-C to the end, without other load
ENGINES = ["hfdt", "nfdt"]


IGNORED = ["bash", "-c", 'trap "" INT; exec "$0" "$@"']  # as a shell starts what stands before &


def command(engine, *words, workers=2):
    return [sys.executable, "-m", engine, "run", "-np", str(workers), SCRIPT, *words]


def run(engine, *words, workers=2):
    argv = command(engine, *words, workers=workers)
    return subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


@pytest.fixture
def training(request, engine):
    """A run that has trained an epoch and would go on for ever. Its parameter: what it is started by."""
    by = getattr(request, "param", [])
    running = subprocess.Popen(
        [*by, *command(engine, FOREVER, "none")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in running.stdout:
        if line.startswith("Epoch 2/"):
            break
    else:
        pytest.fail(running.stderr.read())
    yield running
    running.kill()
    running.communicate()


def members(pid, name):
    """Processes below `pid` that run the module `name`, in order of their start."""
    below = psutil.Process(pid).children(recursive=True)
    return sorted((p for p in below if p.cmdline()[1:3] == ["-m", name]), key=lambda p: p.pid)


def lives(process):
    """One whose parent was killed may be a zombie that nobody waits for."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # ended between the two
        return False


def gone(processes, within_s):
    """Whether all have ended in time."""
    deadline = time.monotonic() + within_s
    while any(map(lives, processes)):
        if time.monotonic() > deadline:
            return False
        os.sched_yield()
    return True


@pytest.mark.exclusive
@pytest.mark.parametrize(
    ("engine", "training"),
    [("hfdt", IGNORED), ("nfdt", [])],
    ids=["hfdt in the background", "nfdt in the foreground"],
    indirect=["training"],
)
def test_ctrl_c_is_one_line_and_exit_130(engine, training):
    """One start for each engine: both reset SIGINT first, which tests/single/test_signals.py holds of either start."""
    workers = members(training.pid, f"{engine}.worker.process")
    assert len(workers) == 2
    began, before = time.monotonic(), stalled_s()
    training.send_signal(signal.SIGINT)
    _, err = training.communicate(timeout=60)  # once is enough
    assert time.monotonic() - began < PROMISED_S + added_s(before)
    assert gone(workers, 30)
    assert training.returncode == 130
    assert err.strip().splitlines()[-1] == f"{engine}: interrupted"
    assert "Traceback" not in err


def test_a_killed_worker_is_named_with_signal_and_log(engine, training):
    workers = members(training.pid, f"{engine}.worker.process")
    workers[1].kill()
    _, err = training.communicate(timeout=150)  # a guard: it would train for ever
    assert training.returncode == 1
    assert "was lost: signal 9 (SIGKILL); its log is" in err
    assert "Traceback" not in err
    assert gone(workers, 30)


def test_a_killed_command_leaves_nothing_running(engine, training):
    workers = members(training.pid, f"{engine}.worker.process")
    everybody = psutil.Process(training.pid).children(recursive=True)
    store = Path(workers[0].environ()["FDT_ENGINE"].removeprefix("unix:")).parent.parent
    assert store.is_dir()
    training.kill()
    assert gone(everybody, 30)
    assert not store.exists(), "with its sockets"


def test_a_script_that_raises_shows_its_own_traceback(engine):
    result = run(engine, "1", "raise", workers=1)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    start = lines.index("Traceback (most recent call last):")
    assert lines[start + 1].startswith(f'  File "{SCRIPT}"')
    assert "ValueError: from the script" in lines


def test_a_raising_callback_ends_the_run_with_its_traceback(engine):
    result = run(engine, FOREVER, "callback")
    assert result.returncode == 1
    assert "RuntimeError: from the callback" in result.stderr


def test_the_scripts_exit_code_is_ours(engine):
    assert run(engine, "1", "exit", workers=1).returncode == 3


def test_a_script_that_never_trains_runs_and_says_so(engine):
    result = run(engine, "1", "nothing", workers=1)
    assert result.returncode == 0
    assert result.stdout == "the script has ended\n"
    assert len(result.stderr.strip().splitlines()) == 1


def test_no_such_script_is_one_line(engine):
    argv = [sys.executable, "-m", engine, "run", "no_such.py"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1


STRAYS = """
import os
import keras, numpy as np, tensorflow as tf
x = np.ones((64, 2), "float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
for number, batch in enumerate(tf.data.Dataset.from_tensor_slices(x).batch(8)):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(batch) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    if number == 2 and os.getpid() == os.getpgrp():  # only ranks other than 0 lead a process group
        raise ValueError("astray")
"""


def test_a_rank_that_leaves_the_loop_is_named_with_where_the_others_are(tmp_path):
    script = tmp_path / "strays.py"
    script.write_text(STRAYS)
    argv = [sys.executable, "-m", "hfdt", "run", "-np", "2", str(script)]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert "all ranks must call the same collectives" in last
    assert f"rank 1 has ended the script (exit code 1: ValueError: astray, at {script}:12)" in last
    assert re.search(rf"rank 0 calls .* at {re.escape(str(script))}:1", last)  # in the step's lines


LARGEST = """
import keras, tensorflow as tf

class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.top = self.add_weight(name="top", shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.top.assign(tf.maximum(self.top, tf.reduce_max(tf.cast(y_true, "float32"))))

    def result(self):
        return self.top + 0.0

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=[Largest()])
x = tf.range(32.0)[:, None] / 32
print(model.fit(x, x, batch_size=4, epochs=1, verbose=0).history["largest"])
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize("how", [["-np", "2"], ["-np", "2", "--capture", "replica"], ["-np", "2", "--ps", "2"]])
def test_a_metric_that_workers_cannot_add_up_is_refused_by_name(tmp_path, how):
    (tmp_path / "largest.py").write_text(LARGEST)
    argv = [sys.executable, "-m", "nfdt", "run", *how, str(tmp_path / "largest.py")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert done.returncode == 1 and not done.stdout and len(errors) == 1, done.stderr
    assert "Received: 'largest', Largest (largest.py:5); use hfdt run, or -np 1" in errors[0]


STOPS_EARLY = """
import numpy as np
import tensorflow as tf
v1 = tf.compat.v1
x = np.repeat(np.float32([1, 9]), 8).reshape(2, 8, 1)  # the losses of worker 0 fall below the mark at once
weight = tf.Variable([0.0])
optimizer = tf.keras.optimizers.SGD(0.0)
@tf.function
def step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(batch + 0.0 * weight)
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    return loss
for epoch in range(4):
    total = 0.0
    for batch in tf.data.Dataset.from_tensor_slices(x):
        total += float(step(batch))
    if total < 5:
        break
with tf.Graph().as_default(), v1.Session() as session:
    rows = v1.placeholder(tf.float32, [8, 1])
    v = v1.get_variable("v", initializer=[0.0], use_resource=True)
    loss = tf.reduce_mean(rows + 0.0 * v)
    train = v1.train.GradientDescentOptimizer(0.0).minimize(loss)
    session.run(v1.global_variables_initializer())
    for again in range(4):
        totals = [session.run([train, loss], {rows: batch})[1] for batch in x]
        if np.mean(totals) < 5:
            break
print(epoch, total, again, np.sum(totals))
"""


@pytest.mark.timeout(200)
def test_asynchronous_workers_stop_early_when_rank_0_does(tmp_path):
    (tmp_path / "stops.py").write_text(STOPS_EARLY)
    argv = [sys.executable, "-m", "nfdt", "run", "-np", "2", str(tmp_path / "stops.py")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"worker \d: +(\d+) steps", done.stderr) == ["2", "2"], done.stderr
    assert done.stdout == "0 2.0 0 2.0\n"


@pytest.mark.timeout(200)
def test_one_worker_computes_a_metric_that_workers_cannot_add_up(tmp_path):
    (tmp_path / "largest.py").write_text(LARGEST)
    argv = [sys.executable, "-m", "nfdt", "run", "-np", "1", str(tmp_path / "largest.py")]
    assert subprocess.run(argv, capture_output=True, text=True, timeout=150, check=True).stdout == "[0.96875]\n"
