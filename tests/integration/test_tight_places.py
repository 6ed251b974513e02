"""Runs in a small container, on a full disk, and with a wall clock that jumps."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.namespaces import until

pytestmark = pytest.mark.timeout(400)

SCRIPT = """
    import contextlib, sys
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(4096, 256)).astype("float32")  # 4 MB
    y = (x.sum(1) > 0).astype("float32")
    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(1024, "relu"), keras.layers.Dense(1)])  # 1 MB
    with contextlib.suppress(OSError), open(sys.argv[1] + "/full", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    model.compile(keras.optimizers.SGD(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
    losses = model.fit(x, y, batch_size=64, epochs=3, verbose=0).history["loss"]
    print("trained", int(model.optimizer.iterations), losses[-1] < losses[0])
"""
CLOCK = """
    import sys
    import time

    wall = time.time

    def jumping():
        # gRPC takes the time and adds to it what its core compares with the time: no jump falls in between.
        if sys._getframe(1).f_globals.get("__name__", "").startswith("grpc"):
            return wall()
        return wall() + (7200.0 if int(time.monotonic() * 2) % 2 else -7200.0)

    time.time = jumping
"""
TIGHT = """
    set -e
    mount --make-rprivate /
    mount -t tmpfs -o size=1m tmpfs /dev/shm
    mount -t tmpfs -o size=64k,mode=700 tmpfs "$1"
    shift
    exec "$@"
"""


def can_mount():
    unshare = shutil.which("unshare")
    return os.geteuid() == 0 and unshare and not subprocess.run([unshare, "--mount", "true"], check=False).returncode


@pytest.mark.skipif(not can_mount(), reason="needs to mount file systems of its own: root, and unshare")
@pytest.mark.parametrize("engine", ["hfdt", "nfdt"])
def test_a_run_with_1_mb_of_shared_memory_a_disk_that_fills_up_and_a_jumping_clock(engine, tmp_path):
    for name, text in {"script.py": SCRIPT, "clock/sitecustomize.py": CLOCK, "tight.sh": TIGHT}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(line[4:] for line in text.strip("\n").splitlines()) + "\n")
    for name in ("logs", "tmp"):
        (tmp_path / name).mkdir()
    argv = [sys.executable, "-m", engine, "run", "-np", "2", "--restarts", "1", "--run-dir", tmp_path / "logs"]
    shell = ["unshare", "--mount", "sh", tmp_path / "tight.sh", tmp_path / "logs"]
    paths = os.pathsep.join([str(tmp_path / "clock"), os.environ.get("PYTHONPATH", os.getcwd())])
    env = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run(
        [*shell, *argv, tmp_path / "script.py", tmp_path / "logs"],
        env=env,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "trained 192 True", done.stdout
    assert "a checkpoint cannot be written: [Errno 28] No space left on device" in done.stderr
    assert "Jsonl failed and is no longer used: [Errno 28] No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    until(lambda: not left(tmp_path / "tmp"), 60, lambda: left(tmp_path / "tmp"))


def left(folder):
    """What was on disk goes with the run; TensorFlow's own files go when a process ends by itself."""
    return [file.name for file in folder.iterdir() if not file.name.startswith("__autograph")]
