"""`serve`, two runs at the same time, `queue`, and a cancelled job, as users have them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

WAIT_S = 300
SCRIPT = """
import sys
import keras
import numpy as np

x = np.linspace(0, 1, 64, dtype="float32").reshape(16, 4)
model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
model.compile("sgd", "mse")
history = model.fit(x, x[:, :1], epochs=int(sys.argv[1]), batch_size=16, shuffle=False, verbose=0)
print("first loss", round(history.history["loss"][0], 4))
"""


def start(*argv, **options):
    environment = {**os.environ, "FDT_TOKEN": "right"}
    return subprocess.Popen(
        [sys.executable, "-m", "nfdt", *argv],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **options,
    )


def jobs(server):
    """The jobs of the pool by name; each name is that of a script."""
    said = start("queue", "--server", server, "--json").communicate(timeout=WAIT_S)[0]
    return {job["name"]: job for job in json.loads(said)["jobs"]}


def test_two_users_train_at_the_same_time_and_one_job_is_cancelled(tmp_path):
    for name in ("long.py", "short.py"):
        (tmp_path / name).write_text(SCRIPT)
    server = f"unix:{tmp_path}/pool"
    serving = start("serve", "-np", "2", "--socket", f"{tmp_path}/pool", "--log-dir", str(tmp_path / "logs"))
    running = [serving]
    try:
        assert serving.stdout.readline() == f"nfdt: 2 workers at {server}\n"
        for name, epochs in (("long.py", 10**7), ("short.py", 2)):
            command = ("run", "--server", server, str(tmp_path / name), "-np", "1", "--", str(epochs))
            running.append(start(*command))
        long, short = running[1:]
        said = short.communicate(timeout=WAIT_S)[0]
        assert short.returncode == 0 and "first loss 3.093" in said, said
        deadline = time.monotonic() + WAIT_S
        while (job := jobs(server).get("long.py")) is None:
            assert time.monotonic() < deadline
        assert (job["state"], job["slots"], job["user"]) == ("RUNNING", 1, "")
        members = psutil.Process(serving.pid).children(recursive=True)
        said = start("queue", "--server", server, "--cancel", str(job["number"])).communicate(timeout=WAIT_S)[0]
        assert said == f"job {job['number']} is cancelled\n"
        said = long.communicate(timeout=WAIT_S)[0]
        assert long.returncode == 1 and f"nfdt: error: job {job['number']} was cancelled" in said, said
        serving.send_signal(signal.SIGTERM)
        assert "nfdt: stopped" in serving.communicate(timeout=WAIT_S)[0] and serving.returncode == 0
        assert not psutil.wait_procs(members, WAIT_S)[1]
    finally:
        for process in running:
            process.kill()
            process.communicate()
    assert not Path(f"{tmp_path}/pool").exists()
