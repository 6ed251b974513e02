"""Records of scripts that run in this process, as `verify` makes them."""

import importlib
import os
import subprocess
import sys

import pytest

from client_shim.script import run_script
from client_shim.verify.command import ALONE, SHAKEN
from client_shim.verify.compare import compare
from client_shim.verify.plan import PRINTED, RecordingPlan
from client_shim.verify.recording import recorded
from client_shim.verify.records import read_run
from client_shim.verify.table import DIFFERS, EQUAL, judge

FUNCTION = """
import numpy as np, tensorflow as tf
x = np.random.default_rng().normal(size=(40, 3)).astype("float32")
w = tf.Variable([[1.0], [2.0], [0.0]])
@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - 1.0) ** 2)
    w.assign_sub(RATE * tape.gradient(loss, w))
    return loss
for batch in tf.data.Dataset.from_tensor_slices(x).shuffle(40).batch(8):
    step(batch)
"""
BY_HAND = """
import tensorflow as tf
x = tf.random.normal((40, 3))
w, b = tf.Variable([[1.0], [2.0], [0.0]]), tf.Variable(0.0)
w.assign(w * 2)
for batch in tf.data.Dataset.from_tensor_slices(x).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((batch @ w + b - 1.0) ** 2)
    for variable, gradient in zip([w, b], tape.gradient(loss, [w, b])):
        variable.assign_sub(RATE * gradient)
"""
FIT = """
import time, keras, numpy as np
x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
model = keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5),
                          keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(RATE), "mse")
model.fit(x, x[:, :1], batch_size=8, epochs=1)
with open("left.txt", "w") as file:
    file.write(str(time.time()))
"""
LINE = {"function": "script.py:12", "by hand": "script.py:9", "fit": "script.py:7"}
SCRIPTS = {"function": FUNCTION, "by hand": BY_HAND, "fit": FIT}


def record(tmp_path, monkeypatch, source, name, rate=0.1, steps=9):
    """What is recorded of a script alone. Standard output is not compared here."""
    script = tmp_path / "script.py"
    script.write_text(source.replace("RATE", str(rate)))
    plan = RecordingPlan(str(tmp_path / "root"), name, steps, 3, os.getpid(), name == SHAKEN)
    plan.scratch.mkdir(parents=True)
    (plan.directory / PRINTED).touch()
    monkeypatch.setattr(os, "environ", {**os.environ, **plan.environment()})
    monkeypatch.chdir(tmp_path)
    with recorded():
        assert run_script(str(script), []) == 0
    return read_run(plan.directory)


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_is_equal_to_itself_and_different_from_one_of_another_rate(tmp_path, monkeypatch, kind):
    alone, shaken, same, other = (
        record(tmp_path, monkeypatch, SCRIPTS[kind], name, rate)
        for name, rate in ((ALONE, 0.1), (SHAKEN, 0.1), ("same", 0.1), ("other", 0.1001))
    )
    assert len(alone.steps) == 5
    assert all(step.logs["loss"] > 0 for step in alone.steps)
    moved = compare(alone, alone, shaken).steps[1].weights  # `fit` makes its model in the first
    assert 0 < moved.difference < 1e-5
    assert judge(alone, shaken, same, compare(alone, shaken, same), 9).outcome == EQUAL
    found = judge(alone, shaken, other, compare(alone, shaken, other), 9)
    assert found.outcome == DIFFERS
    assert found.text.startswith(f"step 1 at {LINE[kind]}: ")
    assert not (tmp_path / "left.txt").exists()


def test_a_script_ends_behind_the_last_step(tmp_path, monkeypatch):
    assert len(record(tmp_path, monkeypatch, FUNCTION + "raise ValueError", ALONE, steps=4).steps) == 4


def test_what_fit_draws_differently_when_it_is_divided_is_turned_off_and_said_to_be(tmp_path, monkeypatch):
    notes = " ".join(record(tmp_path, monkeypatch, FIT, ALONE, steps=1).notes)
    assert "shuffle is off" in notes and "dropout is off" in notes


def test_a_batch_whose_gradients_wait_is_no_step_also_where_it_builds_the_model(tmp_path, monkeypatch):
    source = FIT.replace("SGD(RATE)", "SGD(RATE, gradient_accumulation_steps=2)")
    assert len(record(tmp_path, monkeypatch, source, ALONE).steps) == 2  # of five batches


def test_moving_averages_are_recorded_and_metrics_and_slots_are_not(tmp_path, monkeypatch):
    (step,) = record(tmp_path, monkeypatch, FIT, ALONE, steps=1).steps
    names = [values.name.rpartition("/")[2] for values in step.variables.values()]
    assert sorted(names) == ["beta", "bias", "bias", "gamma", "kernel", "kernel", "moving_mean", "moving_variance"]


COARSE = """
import KERAS, numpy as np, tensorflow as tf
x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
POLICY
first, last = KERAS.layers.Dense(4, dtype=DTYPE), KERAS.layers.Dense(1, dtype="float32")
model = KERAS.Sequential([KERAS.Input((3,)), first, last])
TRAIN
"""
BY_FIT = 'model.compile("sgd", "mse")\nmodel.fit(x, x[:, :1], batch_size=8, verbose=0)'
BY_LOOP = """
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(model(x) ** 2)
for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
    v.assign_sub(0.1 * g)
"""


@pytest.mark.parametrize(
    ("keras", "policy", "dtype", "train", "unit"),
    [
        ("keras", "", '"mixed_bfloat16"', BY_FIT, 2.0**-7),
        ("keras", "", '"mixed_float16"', BY_LOOP, 2.0**-10),
        ("tf_keras", 'KERAS.mixed_precision.set_global_policy("mixed_bfloat16")', "None", BY_FIT, 2.0**-7),
        ("tf_keras", "", 'KERAS.mixed_precision.Policy("mixed_bfloat16")', BY_LOOP, 2.0**-7),
        ("keras", "", "None", BY_FIT, 2.0**-23),
    ],
)
def test_a_layer_that_computes_coarsely_makes_all_variables_coarse(
    tmp_path, monkeypatch, keras, policy, dtype, train, unit
):
    source = COARSE.replace("TRAIN", train).replace("POLICY", policy).replace("DTYPE", dtype).replace("KERAS", keras)
    try:
        first, *_ = record(tmp_path, monkeypatch, source, ALONE, steps=2).steps
    finally:
        importlib.import_module(keras).mixed_precision.set_global_policy("float32")
    assert len(first.variables) == 4 and {values.unit for values in first.variables.values()} == {unit}


IN_A_TRACE = """
import KERAS, numpy as np, tensorflow as tf
x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
class Net(KERAS.Model):
    def __init__(self):
        super().__init__()
        self.dense = KERAS.layers.Dense(1)
    def call(self, x):
        return self.dense(x)
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(data[0], training=True) - data[1]) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}
model = Net()
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=8, verbose=0)
"""


@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_a_model_that_the_first_step_builds_is_recorded(tmp_path, monkeypatch, keras):
    steps = record(tmp_path, monkeypatch, IN_A_TRACE.replace("KERAS", keras), ALONE).steps
    assert len(steps) == 5 and all(len(step.variables) == 2 and "loss" in step.logs for step in steps)
    assert [all(v.known for v in step.variables.values()) for step in steps] == [False, True, True, True, True]


AGAIN = """
from client_shim.verify.plan import RecordingPlan
from client_shim.verify.recording import recorded
from fdt.errors import NeedsReplica
try:
    with recorded():
        print("loss 1.5")
        raise NeedsReplica("a step needs all rows", "rows", trained=False)
except NeedsReplica:
    print(RecordingPlan.take().name)
"""


def test_a_run_that_starts_again_is_recorded_and_its_first_lines_are_not(tmp_path):
    plan = RecordingPlan(str(tmp_path), ALONE, 2, 3, os.getpid())
    plan.scratch.mkdir(parents=True)
    with open(plan.directory / PRINTED, "wb") as out:
        env = {**os.environ, **plan.environment()}
        subprocess.run([sys.executable, "-c", AGAIN], env=env, stdout=out, check=True, timeout=60)
    assert (plan.directory / PRINTED).read_text() == f"{ALONE}\n"
