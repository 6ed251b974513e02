"""Horovod's rendezvous server as a process: it ends with the process that started it, however that ends."""

import subprocess
import sys

import psutil
import pytest

pytest.importorskip("horovod")

PARENT = """
import os, subprocess, sys, time
words = ["localhost:1", "1", "127.0.0.1", "0", str(os.getpid())]
print(subprocess.Popen([sys.executable, "-m", "hfdt.engine.rendezvous", *words]).pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.timeout(120)
def test_it_ends_with_its_parent():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        rendezvous = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert rendezvous.wait(timeout=60) is None  # None: it was no child of this process
