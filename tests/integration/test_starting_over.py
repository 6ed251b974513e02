"""A training loop that capture detection does not find in the source: the run restarts as a replicated script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(0)
rows = np.random.RandomState(0).randn(23, 4)
weights = tf.Variable(np.ones((4, 1)))
optimizer = keras.optimizers.SGD(0.1)
apply = getattr(optimizer, "apply_" + "gradients")
for step in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.matmul(rows, weights) ** 2) / 23
    apply([(tape.gradient(loss, weights), weights)])
    print(step, round(float(loss), 9))
"""


@pytest.mark.timeout(200)
def test_a_loop_that_is_found_at_run_time_is_divided(tmp_path):
    (tmp_path / "hidden.py").write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

    def run(*command):
        return subprocess.run(
            [sys.executable, *command, "hidden.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180,
            stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}, check=True,
        )  # fmt: skip

    divided = run("-m", "hfdt.cli", "run", "-np", "2")
    assert divided.stdout == run().stdout
    assert "hidden.py:11 trains outside fit: the run starts again" in divided.stderr
    assert "worker 0:    33 samples, 3 steps" in divided.stderr
