"""`serve`, runs of two users at the same time, `queue`, a cancelled job and a killed worker, as users have them."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.namespaces import until

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

WAIT_S = 300
SCRIPT = """
import sys
import keras
import numpy as np

x = np.linspace(0, 1, 64, dtype="float32").reshape(16, 4)
model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
model.compile("sgd", "mse")
trains = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epoch or print("it trains", flush=True))
options = {"batch_size": 16, "shuffle": False, "verbose": 0, "callbacks": [trains]}
history = model.fit(x, x[:, :1], epochs=int(sys.argv[1]), **options)
print("first loss", round(history.history["loss"][0], 4))
"""
FOR_EVER, TRAINS, LOSS = str(10**7), "it trains\n", "first loss 3.093"


class Pool:
    """A pool, and the commands that were started, which end with it. `tls`: the words of a user's certificate."""

    def __init__(self, engine, folder, *options, tls=lambda user: ()):
        self.engine, self.tls, self.started, self.folder = engine, tls, [], folder
        for name in ("long.py", "short.py"):
            (folder / name).write_text(SCRIPT)
        self.serving = self.start("serve", *options, "--log-dir", str(folder / "logs"))
        first = self.serving.stdout.readline()
        assert re.fullmatch(rf"{engine}: \d workers? at .*\n", first), first
        self.server = ("--server", first.split()[-1])

    def start(self, *argv):
        self.started.append(
            subprocess.Popen(
                [sys.executable, "-m", self.engine, *argv],
                env={**os.environ, "FDT_TOKEN": "right"},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
        return self.started[-1]

    def run(self, name, epochs, user=""):
        return self.start("run", *self.server, *self.tls(user), str(self.folder / name), "-np", "1", "--", epochs)

    def await_training(self, run):
        said = []
        while not said or said[-1] not in ("", TRAINS):
            said.append(run.stdout.readline())
        assert said[-1], said

    def queue(self, *words, user=""):
        return self.start("queue", *self.server, *self.tls(user), *words).communicate(timeout=WAIT_S)[0]

    def members(self):
        return psutil.Process(self.serving.pid).children(recursive=True)

    def stop(self):
        members = self.members()
        self.serving.send_signal(signal.SIGTERM)
        said = self.serving.communicate(timeout=WAIT_S)[0]
        assert f"{self.engine}: stopped" in said and self.serving.returncode == 0
        assert not psutil.wait_procs(members, WAIT_S)[1]

    def close(self):
        for process in self.started:
            process.kill()
            process.communicate()


def test_two_users_train_at_the_same_time_and_one_job_is_cancelled(tmp_path):
    def tls(user):
        files = {"cert": f"{user}.pem", "key": f"{user}.key", "ca": "ca.pem"}
        return [word for name, file in files.items() for word in (f"--tls-{name}", str(tmp_path / "certs" / file))]

    users = ("--user", "alice", "--user", "bob")
    subprocess.run([sys.executable, "-m", "nfdt", "certs", str(tmp_path / "certs"), "127.0.0.1", *users], check=True)
    pool = Pool("nfdt", tmp_path, "-np", "2", "--host", "127.0.0.1", "--port", "0", *tls("127.0.0.1"), tls=tls)
    try:
        long, short = pool.run("long.py", FOR_EVER, "alice"), pool.run("short.py", "2", "bob")
        said = short.communicate(timeout=WAIT_S)[0]
        assert short.returncode == 0 and LOSS in said, said
        pool.await_training(long)
        jobs = lambda: json.loads(pool.queue("--json", user="bob"))["jobs"]  # noqa: E731
        until(lambda: len(jobs()) == 1, WAIT_S, jobs)  # the short one may leave the queue behind its client
        (job,) = jobs()
        assert (job["name"], job["state"], job["slots"], job["user"]) == ("long.py", "RUNNING", 1, "alice")
        cancel = ("--cancel", str(job["number"]))
        assert f"job {job['number']} is alice's, and bob is no administrator" in pool.queue(*cancel, user="bob")
        assert pool.queue(*cancel, user="alice") == f"job {job['number']} is cancelled\n"
        said = long.communicate(timeout=WAIT_S)[0]
        assert long.returncode == 1 and f"nfdt: error: job {job['number']} was cancelled by alice" in said, said
        pool.stop()
    finally:
        pool.close()


@pytest.mark.parametrize("engine", ["hfdt", "nfdt"])
def test_a_killed_worker_ends_its_job_and_the_next_job_has_another(tmp_path, engine):
    pool = Pool(engine, tmp_path, "-np", "1", "--socket", f"{tmp_path}/pool")
    try:
        struck = pool.run("long.py", FOR_EVER)
        pool.await_training(struck)
        (worker,) = [p for p in pool.members() if p.cmdline()[1:3] == ["-m", f"{engine}.worker.process"]]
        worker.kill()
        said = struck.communicate(timeout=WAIT_S)[0]
        assert struck.returncode == 1 and "worker 0 was lost: signal 9 (SIGKILL)" in said, said
        after = pool.run("short.py", "2")
        said = after.communicate(timeout=WAIT_S)[0]
        assert after.returncode == 0 and LOSS in said, said
        until(lambda: pool.queue() == "1 of 1 slot is free\n", WAIT_S, pool.queue)
        pool.stop()
    finally:
        pool.close()
    assert not Path(f"{tmp_path}/pool").exists()
