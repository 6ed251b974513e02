"""Processes of an NFDT engine killed during training: every sample is applied once, or the promised error is raised."""

import os
import queue
import secrets
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

keras = pytest.importorskip("keras")

from client_shim.capture.program import capture_program  # noqa: E402
from fdt import tensors  # noqa: E402
from fdt.job import ArrayData, FitArguments, JobSpec, State  # noqa: E402
from fdt.keras import named  # noqa: E402
from fdt.rpc.session_pb2 import Command, Epoch, Finish, Setup  # noqa: E402
from fdt.supervise.joining import JoinEndpoint  # noqa: E402
from fdt.trainable import Trainable  # noqa: E402
from nfdt.engine import NfdtEngine  # noqa: E402

pytestmark = pytest.mark.timeout(240)

ROWS = 256
COME_S = 150.0  # a process that imports TensorFlow, on a machine that has other things to do
PAUSE_S = 0.5  # between epochs in which it cannot train yet: they would take the cores that its import needs


def mean_output(y_true, y_pred):
    return keras.ops.mean(y_pred)


def counting_model():
    """Its weight i is minus the number of times that row i was applied, whatever the order: gradients are constant."""
    import tensorflow as tf

    model = keras.Sequential([keras.layers.Input((ROWS,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(1.0), mean_output)
    model.set_weights([np.zeros((ROWS, 1), np.float32)])
    model.optimizer.build(model.trainable_variables)
    spec = (tf.TensorSpec((None, ROWS), tf.float32), tf.TensorSpec((None,), tf.float32), None)
    named("keras").build(model, spec)
    return model


class Run:
    """One job that counts, epoch by epoch; members are killed between two events."""

    def __init__(self, engine, **options):
        self.engine, self.model, blobs = engine, counting_model(), engine.blobs
        self.trainable = Trainable(named("keras"), self.model)
        skeleton, leaves = tensors.flatten((np.eye(ROWS, dtype=np.float32), np.zeros(ROWS, np.float32)))
        groups = (self.trainable.model_arrays(), self.trainable.optimizer_arrays())
        spec = JobSpec(
            id=secrets.token_hex(4),
            program=capture_program(self.trainable.flavor, self.model, blobs)[0],
            state=State(*(blobs.put_arrays(arrays) for arrays in groups)),
            data=ArrayData(blobs.put_arrays(leaves), skeleton, ROWS),
            fit=FitArguments(batch_size=1, epochs=1000),
            seed=1,
            options={"rule": "asgd", **options},
        )
        self.job = spec.id
        self.commands, self.faults, self.epochs = queue.SimpleQueue(), [], 0
        self.memberships = []
        self.events = engine.train(iter(self.commands.get, None))
        self.say(setup=Setup(job=spec.to_proto()))
        self.until("ready")

    def say(self, **kind):
        self.commands.put(Command(job=self.job, **kind))

    def until(self, wanted):
        for event in self.events:
            kind = event.WhichOneof("kind")
            if kind == "fault":
                self.faults.append(event.fault)
            if kind == "membership":
                self.memberships.append((event.membership.member, event.membership.action))
            if kind == wanted:
                return getattr(event, kind)
            assert kind != "failed", event.failed.message + event.failed.detail
        raise AssertionError(f"the events ended before {wanted}")

    def epoch(self, *kill):
        """One epoch, in which the named members are killed; every row must have been applied once more."""
        self.say(epoch=Epoch(epoch=self.epochs))
        if kill:
            self.until("progress")
        for role, rank in kill:
            os.kill(self.engine._supervisor.registry.attached[role, rank].pid, signal.SIGKILL)
        end = self.until("epoch_end")
        self.epochs += 1
        self.trainable.load(State(end.state.model, end.state.optimizer), self.engine.blobs)
        np.testing.assert_array_equal(self.model.get_weights()[0], -float(self.epochs))
        assert (end.steps, end.samples) == (ROWS, ROWS)
        assert int(self.model.optimizer.iterations) == ROWS * self.epochs
        return end

    def until_faulted(self):
        """A loss that came at an epoch's very end is noticed in the next."""
        while not self.faults:
            self.epoch()

    def until_trained_by(self, *ranks):
        deadline = time.monotonic() + COME_S
        while not {*ranks} <= {share.rank for share in self.epoch().workers if share.steps}:
            assert time.monotonic() < deadline, f"workers {ranks} have not come"
            time.sleep(PAUSE_S)

    def until_left(self, *memberships):
        while not {*memberships} <= {*self.memberships}:
            self.epoch()

    def finish(self):
        self.say(finish=Finish())
        self.until("finished")
        list(self.events)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = NfdtEngine(2, tmp_path_factory.mktemp("engine"), ps=2, join_endpoint=JoinEndpoint("127.0.0.1:0", "secret"))
    engine.start()
    yield engine
    engine.stop()
    assert not engine.blobs.directory.exists()


class Joiner:
    """`nfdt join`, as from another terminal."""

    def __init__(self, engine, count):
        self.engine = engine
        argv = [sys.executable, "-m", "nfdt", "join", engine.reception.address, "-np", str(count)]
        env = {**os.environ, "FDT_TOKEN": "secret"}
        self.process = subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def ranks(self):
        """Those of its workers."""
        there = self.engine._supervisor.registry.attached.items()
        return sorted(rank for (role, rank), a in there if psutil.Process(a.pid).ppid() == self.process.pid)

    def said(self):
        """Its exit code and what it said, once it has ended."""
        said = self.process.communicate(timeout=60)[1]
        return self.process.returncode, said


def test_a_killed_worker_is_replaced_and_every_sample_is_applied_once(engine):
    run = Run(engine, restarts="1", overlap="on")  # two lanes a worker
    run.epoch(("worker", 1))
    run.until_faulted()
    (fault,) = run.faults
    assert (fault.member, fault.action) == ("worker 1", "replaced")
    assert "SIGKILL" in fault.message and "replacement 1 of 1 starts" in fault.message
    run.until_trained_by(1)
    run.finish()


@pytest.mark.parametrize("shard", [0, 1])
def test_a_killed_server_is_restored_and_every_sample_is_in_the_weights_once(engine, shard):
    run = Run(engine, restarts="1", checkpoint_every="0.2")
    run.epoch()
    run.epoch(("server", shard))
    run.until_faulted()
    assert [(fault.member, fault.action) for fault in run.faults] == [(f"server {shard}", "restored")]
    run.epoch()
    run.finish()


def test_with_no_replacement_left_the_others_go_on_down_to_min_np(engine):
    run = Run(engine, min_np="1")
    run.epoch(("worker", 0))
    run.until_faulted()
    assert [fault.action for fault in run.faults] == ["not replaced"]
    assert [share.rank for share in run.epoch().workers] == [1]
    run.say(epoch=Epoch(epoch=run.epochs))
    run.until("progress")
    os.kill(engine._supervisor.registry.attached["worker", 1].pid, signal.SIGKILL)
    assert "worker 1 was lost" in run.until("failed").message


@pytest.mark.timeout(480)
def test_workers_join_train_and_leave_without_harm(engine):
    """By Ctrl-C, by a kill, by the end of the run; as always, every row is applied once an epoch."""
    run, some, one = Run(engine), Joiner(engine, 2), Joiner(engine, 1)
    try:
        run.until_trained_by(0, 1, 2, 3, 4)
        assert {*run.memberships} == {(f"worker {rank}", "joined") for rank in (2, 3, 4)}
        (killed, left), (stays,) = some.ranks(), one.ranks()
        run.epoch(("worker", killed))
        run.until_left((f"worker {killed}", "lost"))
        some.process.send_signal(signal.SIGINT)
        run.until_left((f"worker {left}", "left"))
        code, said = some.said()
        assert code == 0 and f"as worker {killed}, worker {left}" in said and "left the run" in said, said
        run.until_trained_by(0, 1, stays)
        assert not run.faults
        run.finish()
        again = Run(engine)  # who has joined stays for the next job
        again.until_trained_by(stays)
        again.finish()
        engine._supervisor.end()
        code, said = one.said()
        assert code == 0 and "the run has ended" in said, said
    finally:
        for joiner in (some, one):
            if joiner.process.poll() is None:
                joiner.process.terminate()
                joiner.said()
