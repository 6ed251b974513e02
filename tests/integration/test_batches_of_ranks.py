"""Ranks of a replicated script whose seed comes from their process draw different batches: a line says it."""

import subprocess
import sys

SCRIPT = """
import os, keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
numbers = np.random.default_rng(os.getpid())
x = numbers.normal(size=(64, 4))
weights, optimizer = tf.Variable(tf.zeros((4, 1), tf.float64)), keras.optimizers.SGD(0.1)

@tf.function
def step(rows):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((rows @ weights - 1) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
    return loss

for rows in tf.data.Dataset.from_tensor_slices(x).map(lambda row: 2 * row).batch(16):
    loss = step(rows)
for _ in range(2):
    loss = step(tf.constant(numbers.normal(size=(16, 4))))
print("trained", optimizer.iterations.numpy())
"""


def test_batches_that_differ_are_said_at_the_first_step(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    argv = [sys.executable, "-m", "hfdt", "run", "-np", "2", "script.py"]
    found = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=True)
    assert found.stdout == "trained 6\n"
    lines = [line for line in found.stderr.splitlines() if "different batches" in line]
    (line,) = lines
    assert line.startswith("hfdt: warning: ranks drew different batches for step 1 (")
    assert "script.py:15)" in line
