"""A training loop that capture detection does not find in the source: the run restarts as a replicated script."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wrong.verdicts import difference

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, keras, numpy as np, tensorflow as tf
assert "BEGUN" not in os.environ
keras.utils.set_random_seed(os.chdir("temporary") or 0)
rows = np.random.RandomState(len(os.environ.setdefault("BEGUN", ""))).randn(23, 4)
weights = tf.Variable(np.ones((4, 1)))
optimizer = keras.optimizers.SGD(0.1)
apply = getattr(optimizer, "apply_" + "gradients")
for step in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.matmul(rows, weights) ** 2) / 23
    apply([(tape.gradient(loss, weights), weights)])
    print(step, round(float(loss), 9))
"""


def run(folder, script, *command):
    """What the command did with the script. Its temporary directory is `folder`/temporary."""
    path, temporary = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), folder / "temporary"
    temporary.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, *command, script], cwd=folder, capture_output=True, text=True, timeout=180,
        stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary)}, check=True,
    )  # fmt: skip


HFDT = ("-m", "hfdt", "run", "-np", "2")


def run_both(folder, script, text):
    """What the script of that text is with HFDT, and alone."""
    (folder / script).write_text(text)
    return run(folder, script, *HFDT), run(folder, script)


@pytest.mark.timeout(400)
def test_a_loop_that_is_found_at_run_time_is_divided(tmp_path):
    divided, alone = run_both(tmp_path, "hidden.py", SCRIPT)
    assert divided.stdout == alone.stdout
    assert "hidden.py:12 trains outside fit: the run starts again" in divided.stderr
    assert "worker 0:    3 steps, 33 samples" in divided.stderr


TRACED = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(0)
rows = np.random.RandomState(0).randn(24, 4)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, dtype="float64")])
update = keras.optimizers.SGD(0.1).apply

@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    update(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
    return loss

for x in tf.data.Dataset.from_tensor_slices(rows).batch(8):
    print(round(float(train_step(x)), 9))
"""


@pytest.mark.timeout(400)
def test_a_loop_that_is_found_while_a_function_is_traced_is_divided(tmp_path):
    """AutoGraph gives other errors another type: the run ended with the traceback of one."""
    divided, alone = run_both(tmp_path, "traced.py", TRACED)
    assert not difference(alone.stdout, divided.stdout, 1e-6)
    assert "traced.py:16 trains outside fit: the run starts again" in divided.stderr
    assert "worker 0:    3 steps, 12 samples" in divided.stderr


@pytest.mark.timeout(400)
def test_a_fit_that_slices_cannot_train_is_divided_by_placements(tmp_path):
    name = "fit_clipped_by_hand.py"
    shutil.copy(ROOT / "tests/wrong/scripts" / name, tmp_path)
    divided = run(tmp_path, name, *HFDT)
    assert not difference(run(tmp_path, name).stdout, divided.stdout, 1e-9)
    assert "(L2Loss at fit_clipped_by_hand.py:20)" in divided.stderr
    assert "each rank has a part: the run starts again, and every rank runs the script" in divided.stderr
    assert "worker 0:    6 steps, 36 samples" in divided.stderr
    assert not list(tmp_path.glob("temporary/hfdt-*")), "logs of the run that started again"


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fit_updates_by_hand.py", "train_step applies gradients 0 times, and a server applies those of one optimizer"),
        ("fit_accumulated_in_branch.py", "and a server applies those of every step"),
        ("fit_vector_log.py", "Columns.train_step returns 'columns', which is not one number"),
        ("fit_eager_settings.py", "the callback Scale (fit_eager_settings.py:24) may change"),
    ],
)
def test_nfdt_starts_over_where_a_server_cannot_update_the_weights(tmp_path, name, reason):
    shutil.copy(ROOT / "tests/wrong/scripts" / name, tmp_path)
    divided = run(tmp_path, name, "-m", "nfdt", "run", "-np", "1")
    assert not difference(run(tmp_path, name).stdout, divided.stdout, 1e-6)
    assert f"{reason}: the run starts again, and every rank runs the script" in divided.stderr


STATIC = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(0)

class Scaled(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x)) ** 2) * tf.shape(y, out_type=tf.float32)[0]
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"scaled": loss}

inputs = keras.Input((6,))
model = Scaled(inputs, keras.layers.Dense(1)(inputs))
model.compile(keras.optimizers.SGD(0.001))
rows = np.random.normal(size=(26, 6)).astype("float32"), np.random.normal(size=(26, 1)).astype("float32")
data = tf.data.Dataset.from_tensor_slices(rows).batch(12, drop_remainder=True)
print(model.fit(data, epochs=2, verbose=0).history["scaled"])
"""


@pytest.mark.timeout(400)
def test_a_step_that_needs_a_batch_of_static_size_is_divided_by_placements(tmp_path):
    divided, alone = run_both(tmp_path, "static.py", STATIC)
    assert not difference(alone.stdout, divided.stdout, 1e-6)
    assert "a worker could not trace the step (TypeError: " in divided.stderr


REFUSED_FIRST = """
import keras, numpy as np, psutil, tensorflow as tf
keras.utils.set_random_seed(0)
x, y = np.random.normal(size=(26, 6)), np.random.normal(size=(26, 1))

class Columns(keras.Model):
    def train_step(self, data):
        return {**super().train_step(data), "columns": tf.reduce_mean(data[0], 0)}

def workers():
    children = psutil.Process().children(recursive=True)
    return sorted(child.pid for child in children if child.cmdline()[1:] == ["-m", "hfdt.worker.process"])

def fit(kind, *callbacks):
    inputs = keras.Input((6,))
    model = kind(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks)).history["loss"]

class Raising(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise RuntimeError(f"at the end of epoch {epoch}")

try:
    fit(Columns)
except Exception as error:
    print(type(error).__name__, "columns" in str(error))
before = workers()
try:
    fit(keras.Model, Raising())
except RuntimeError as error:
    print(error)
print(fit(keras.Model), len(before), workers() == before)
"""


CAUGHT = """
try:
    print(fit(Columns))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.timeout(400)
def test_a_refusal_that_the_script_catches_starts_the_run_again(tmp_path):
    divided, alone = run_both(tmp_path, "caught.py", REFUSED_FIRST.partition("try:")[0] + CAUGHT)
    first, again = divided.stdout.splitlines()
    assert first == "NeedsReplica"
    assert "returns 'columns', which is not one number: the run starts again" in divided.stderr
    assert not difference(alone.stdout.strip(), again, 1e-6)


@pytest.mark.timeout(400)
def test_workers_that_refused_a_fit_train_the_next(tmp_path):
    (tmp_path / "refused.py").write_text(REFUSED_FIRST)
    with pytest.raises(subprocess.CalledProcessError) as ended:  # the script caught it: what it says then is its own
        run(tmp_path, "refused.py", *HFDT, "--capture", "extract")
    said = ended.value.stdout.splitlines()
    assert "hfdt: error: Columns.train_step (refused.py:" in ended.value.stderr
    alone = run(tmp_path, "refused.py").stdout.splitlines()
    assert said[0] == "NeedsReplica True"
    assert said[1] == "at the end of epoch 0"
    assert said[2].endswith(" 2 True")
    assert not difference(alone[-1].partition("]")[0], said[2].partition("]")[0], 1e-6)
