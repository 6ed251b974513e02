"""A runner of a script of this directory as ranks under mpirun, which leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fdt.launch.mpirun import find_mpirun

HERE = Path(__file__).parent
FLAGS = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
needs_mpirun = pytest.mark.skipif(not find_mpirun(), reason="no mpirun")


def run(size, script, *arguments, timeout_s):
    """`size` 0: plainly, without a launcher. Fails the test with what the ranks said when one of them fails."""
    launcher = [find_mpirun(), *FLAGS, "-np", str(size)] if size else []
    argv = [*launcher, sys.executable, str(HERE / script), *map(str, arguments)]
    env = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
    process = subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, said[-4000:]
