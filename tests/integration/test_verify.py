"""`hfdt verify`, `nfdt verify` and `hfdt run --verify`: whole commands on small scripts."""

import os
import subprocess
import sys

import pytest

from tests.namespaces import until

pytestmark = pytest.mark.timeout(300)  # three runs of TensorFlow

FIT = """
import time
import keras
import numpy as np

class Throughput(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}: loss {logs['loss']:.4f}, {time.perf_counter() - started:.3f} seconds after the start")

started = time.perf_counter()
x = np.random.default_rng().normal(size=(52, 6, 6, 1)).astype("float32")
y = (x.mean((1, 2, 3)) > 0).astype("int32")
model = keras.Sequential([
    keras.layers.Conv2D(4, 3, activation="relu"),
    keras.layers.BatchNormalization(),
    keras.layers.Flatten(),
    keras.layers.Dropout(0.5),
    keras.layers.Dense(2),
])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
model.fit(x, y, batch_size=16, epochs=2, callbacks=[Throughput()], verbose=2)
print(f"accuracy {model.evaluate(x, y, verbose=0)[1]:.3f}")
model.save("model.keras")
"""
LOOP = """
import sys
import keras
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).normal(size=(50, 3)).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(RATE)

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - x[:, :1]) ** 2)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss

for batch in tf.data.Dataset.from_tensor_slices(x).shuffle(50).batch(16):
    print(f"loss {float(step(batch)):.5f}")
with open("log.txt", "a") as file:
    file.write("once\\n")
"""


@pytest.fixture
def command(tmp_path):
    """`command(engine, words..., source=)`: exit code, output, errors; nothing may be left of its extra runs."""
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    temporary.mkdir()

    def run(engine, *words, source):
        (work / "script.py").write_text(source)
        argv = [sys.executable, "-m", engine, *words]
        # without it, TensorFlow leaves the __pycache__ of AutoGraph's files there, also under plain python
        env = {**os.environ, "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
        ended = subprocess.run(argv, cwd=work, env=env, capture_output=True, text=True, timeout=280, check=False)
        until(lambda: not [*temporary.iterdir()], 60, ended.stderr)
        written = {path.name for path in work.iterdir()} - {"script.py"}
        return ended.returncode, ended.stdout, ended.stderr, written

    return run


@pytest.mark.parametrize("engine", ["hfdt", "nfdt"])
def test_fit_is_equal(command, engine):
    code, output, errors, written = command(engine, "verify", "script.py", source=FIT)
    assert (code, errors, written) == (0, "", set())
    assert "equal: 8 steps and 3 printed lines are equal to float rounding" in output
    assert "shuffle is off" in output and "dropout is off" in output


def test_a_loop_of_its_own_is_equal_on_nfdt(command):
    code, output, errors, written = command("nfdt", "verify", "--steps", "3", "script.py", source=loop("0.01"))
    assert (code, errors, written) == (0, "", set())
    assert "equal: 3 steps and 3 printed lines" in output
    assert "steps at script.py:20" in output


def test_a_run_is_verified_first_and_then_done_once(command):
    code, output, errors, written = command("hfdt", "run", "--verify", "2", "script.py", source=loop("0.01"))
    assert code == 0, errors
    assert errors.count("hfdt: verified: 2 steps and 2 printed lines are equal") == 1
    assert output.count("loss") == 4
    assert written == {"log.txt"}


def test_a_run_whose_numbers_differ_ends_before_it_begins(command):
    wrong = loop("0.01 if 'hfdt' not in sys.modules else 0.0101")  # a division that changes the rate by 1 %
    code, output, errors, written = command("hfdt", "run", "--verify", "2", "script.py", source=wrong)
    assert (code, output, written) == (1, "", set())
    assert errors.startswith(
        "hfdt: error: --verify 2 ended with the verdict 'different': step 1 at script.py:20: update of "
    )
    assert errors.count("\n") == 1


def test_a_script_that_fails_alone_is_said_to(command):
    code, output, errors, _ = command("hfdt", "verify", "script.py", source="raise ValueError('boom')")
    assert (code, output) == (1, "")
    assert errors.splitlines()[-1] == ("hfdt: error: the script failed when run alone: exit code 1: ValueError: boom")


def test_a_script_that_asks_or_never_trains_is_not_proven(command):
    code, _, errors, _ = command("hfdt", "verify", "script.py", source="input('epochs? ')")
    assert code == 1 and "input() at" in errors and "asks the user" in errors
    code, output, _, _ = command("hfdt", "verify", "script.py", source="print('nothing')")
    assert code == 1 and output.startswith("not proven: verify saw no training step")


def loop(rate):
    return LOOP.replace("RATE", rate)
