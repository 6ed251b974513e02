"""A pool over members that are processes: jobs on disjoint workers, a lost worker, what a long-lived server keeps."""

import os
import threading
import time

import psutil
import pytest

from fdt.launch import LocalLauncher
from fdt.rpc.session_pb2 import Command, Epoch, Finish, JobRequest, Setup
from fdt.service.client import TrainingClient
from frontends.pool.engines import EnginePool
from frontends.pool.service import PoolServicer
from tests.parallel.echo_engine import EchoEngine

DEADLY_EPOCH = 7  # of echo_member.py, for its rank 1
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def served(tmp_path):
    """A pool of three slots, and its address."""

    def make(logs, slots):
        return EchoEngine(LocalLauncher(logs), logs, slots.blobs, slots.workers)

    pool = EnginePool(3, make, tmp_path)
    running = PoolServicer("echo", pool).listen("127.0.0.1:0", "right")
    yield pool, running.address
    running.stop()
    pool.stop()
    assert not pool.blobs.directory.exists()


def train(address, workers, epochs=(1,), meanwhile=lambda: None):
    """Train a job; return the samples of its epochs, or the failure's words."""
    client = TrainingClient(address, "right", request=JobRequest(workers=workers))
    conversation, said, left = client.train(), [], list(epochs)
    conversation.send(Command(job="j", setup=Setup()))
    for event in conversation.events():
        kind = event.WhichOneof("kind")
        if kind == "failed":
            said = event.failed.message
            break
        if kind == "epoch_end":
            said.append(event.epoch_end.samples)
        if kind in ("ready", "epoch_end"):
            meanwhile()
            command = {"epoch": Epoch(epoch=left.pop(0))} if left else {"finish": Finish()}
            conversation.send(Command(job="j", **command))
        if kind == "finished":
            break
    conversation.close()
    client.close()
    return said


def test_a_lost_worker_ends_its_job_alone_and_its_slot_is_used_again(served):
    _, address = served
    other, meets = [], threading.Event()
    thread = threading.Thread(target=lambda: other.append(train(address, 1, (1, 2, 3), lambda: meets.wait(60))))
    thread.start()
    assert "worker 1 was lost: signal 9 (SIGKILL)" in train(address, 2, [DEADLY_EPOCH])
    meets.set()
    assert train(address, 2) == [5 + 6], "the same slots, with new workers"
    thread.join(60)
    assert other == [[5, 5, 5]]
    assert train(address, 3, (1, 2)) == [5 + 6 + 7] * 2


def held(pool):
    """What the server has: files of the store, descriptors, children."""
    children = len(psutil.Process().children(recursive=True))
    files = [file.name for file in pool.blobs.directory.rglob("*") if file.is_file() and not file.name.startswith(".")]
    return len(files), len(os.listdir("/proc/self/fd")), children


def test_engines_that_come_and_go_leave_nothing(served):
    pool, address = served
    for workers in (3, 2):
        assert len(train(address, workers)) == 1
    before = held(pool)
    for workers in (3, 2):
        assert "was lost" in train(address, workers, [DEADLY_EPOCH])
        assert len(train(address, workers)) == 1
    deadline = time.monotonic() + 60
    while any(now > then for now, then in zip(held(pool), before, strict=True)):  # connections close in the background
        assert time.monotonic() < deadline, (held(pool), before)
