"""A hostile caller of every network service while others train: nothing crashes or hangs, and other jobs continue.

The cases come from a seeded generator, so their number and content are the same each time.
"""

import os
import pickle
import stat
import threading
import time
from pathlib import Path

import grpc
import pytest

from fdt.launch import LocalLauncher
from fdt.rpc import training_pb2_grpc
from fdt.rpc.job_pb2 import State
from fdt.rpc.session_pb2 import Attached, Command, Epoch, Event, Finish, Setup
from fdt.rpc.tensor_pb2 import BlobRef, Chunk
from fdt.rpc.training_pb2 import CancelRequest, HelloRequest
from fdt.security.auth import credentials
from fdt.service.client import TrainingClient
from fdt.service.transport import open_channel
from frontends.pool.engines import EnginePool
from frontends.pool.service import PoolServicer
from tests.hostile import ANSWER_S, CASES, answer, answers, noise
from tests.parallel.echo_engine import EchoEngine

TRAINING = ("/fdt.rpc.TrainingService/Hello", "/fdt.rpc.TrainingService/Train")
POOL = ("/fdt.rpc.PoolService/Queue", "/fdt.rpc.PoolService/Cancel")
BLOBS = ("/fdt.rpc.BlobService/Put", "/fdt.rpc.BlobService/Get")
HOLD = "/fdt.rpc.BlobService/Hold"
MEMBERS = ("/fdt.rpc.MemberService/Hello", "/fdt.rpc.MemberService/Attach")
DEADLY_EPOCH = 7  # of echo_member.py: rank 1 kills itself
NOWHERE = ("/fdt.rpc.TrainingService/Nothing", "/x", "/")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    directory = tmp_path_factory.mktemp("served")
    launcher = LocalLauncher(directory)
    pool = EnginePool(2, lambda logs, slots: EchoEngine(launcher, logs, slots.blobs), directory)
    running = PoolServicer("echo", pool).listen("127.0.0.1:0", "right")
    with pool.engine(2) as engine:
        engine.start()
    yield engine, running.address
    running.stop()
    pool.stop()


@pytest.fixture(autouse=True)
def others(served):
    """Somebody trains all the time, and every one of her jobs ends well."""
    client = TrainingClient(served[1], "right")
    train(client, "first")  # the members are there: nobody can be in their place
    stop, errors, done = threading.Event(), [], []

    def work():
        try:
            while not stop.is_set():
                train(client, f"job {len(done)}")
                done.append(1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    before = len(done)
    deadline = time.monotonic() + ANSWER_S
    while len(done) <= before and not errors and time.monotonic() < deadline:
        thread.join(0.01)
    stop.set()
    thread.join(ANSWER_S)
    assert not errors and not thread.is_alive() and len(done) > before, errors
    client.close()


def train(client, job):
    conversation = client.train()
    conversation.send(Command(job=job, setup=Setup()))
    for event in conversation.events():
        kind = event.WhichOneof("kind")
        if kind == "ready":
            conversation.send(Command(job=job, epoch=Epoch(epoch=1)))
        elif kind == "epoch_end":
            assert event.epoch_end.samples == 11
            conversation.send(Command(job=job, finish=Finish()))
        elif kind == "finished":
            conversation.close()
            return
    raise AssertionError("the job did not end well")


def honest(rng):
    return [
        Command(job="1", setup=Setup()),
        Command(job="1", epoch=Epoch(epoch=3)),
        Command(job="2", finish=Finish()),
        Event(attached=Attached(role="worker", rank=rng.choice([0, 1, 7, 2**31]))),
        Chunk(ref=BlobRef(id="x", nbytes=1 << 50), data=b"x" * 1000),
        BlobRef(id=rng.choice(["..", "hub.sock", "deadbeef", ""]), nbytes=rng.choice([0, 1, 1 << 60])),
        HelloRequest(version="9" * 1000),
        CancelRequest(number=2**32 - 1),
    ]


def doors(engine, address):
    """The address and name of every call."""
    members = engine.supervisor.registry.address
    ours = [(address, method) for method in (*TRAINING, *POOL, *BLOBS, HOLD)]
    return ours + [(members, method) for method in (*MEMBERS, *BLOBS, HOLD)]


@pytest.mark.parametrize(
    "token", ["", "wrong", "right ", "Right", "\N{LATIN SMALL LETTER E WITH ACUTE}".encode().hex()]
)
def test_strangers_are_turned_away_at_every_door(served, token):
    engine, address = served
    files, opened = {file.name for file in engine.blobs.directory.iterdir()}, len(os.listdir("/proc/self/fd"))
    for where, method in doors(engine, address):
        assert answers(where, method, honest, token, 10) == {grpc.StatusCode.UNAUTHENTICATED}
    assert {file.name for file in engine.blobs.directory.iterdir()} == files, "nothing is written for them"
    deadline = time.monotonic() + ANSWER_S
    while len(os.listdir("/proc/self/fd")) > opened:
        assert time.monotonic() < deadline, "their connections are closed"


class Effect:
    """Opens a file for writing where it is unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return open, (str(self._path), "w")


def test_a_strangers_pickle_has_no_effect(served, tmp_path):
    engine, address = served
    pickled, path = pickle.dumps(Effect(tmp_path / "effect")), tmp_path / "effect"
    for where, method in doors(engine, address):
        with open_channel(where) as channel:
            assert answer(channel, method, [pickled], ()) is grpc.StatusCode.UNAUTHENTICATED
    assert not path.exists()
    pickle.loads(pickled).close()
    assert path.exists(), "it has one"


def test_the_members_token_is_in_no_command_line_and_no_log(served):
    """Nor in an environment that others can read."""
    engine, knows = served[0], 0
    token = engine.supervisor.registry.token.encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = ((process / name).read_bytes() for name in ("cmdline", "environ"))
            found = (process / "environ").stat()
        except OSError:  # it has ended, or is somebody else's
            continue
        assert token not in words
        if token in environment:
            knows += 1
            assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o400, os.geteuid())
    assert knows == engine.workers, "they are the ones that have it"
    logs = [file for file in engine.run_dir.rglob("*") if file.is_file()]
    assert logs and not any(token in file.read_bytes() for file in logs)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", [*TRAINING, *POOL, *BLOBS, *NOWHERE])
def test_noise_from_a_caller_with_the_token(served, method):
    assert grpc.StatusCode.UNAUTHENTICATED not in answers(served[1], method, honest, "right")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", [*MEMBERS, *BLOBS])
def test_noise_at_the_members_door(served, method):
    registry = served[0].supervisor.registry
    assert grpc.StatusCode.UNAUTHENTICATED not in answers(registry.address, method, honest, registry.token)


@pytest.mark.timeout(300)
def test_noise_from_callers_that_hold(served):
    """A call that is granted lasts until its caller ends it, so each ends behind the first answer."""
    granted = 0
    with open_channel(served[1]) as channel:
        for seed in range(CASES):
            said = iter(noise(seed, honest))
            call = channel.stream_stream(HOLD)(said, metadata=credentials("right"), timeout=ANSWER_S)
            try:
                granted += bool(next(call))
            except grpc.RpcError as error:
                assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
            call.cancel()
    assert 0 < granted < CASES


@pytest.mark.parametrize("holder", ["a", "..", "/", "*", "0123456789abcdef"])
def test_a_blob_for_a_holder_that_is_not_has_a_name_of_the_servers(served, holder):
    engine, address = served
    with open_channel(address) as channel:
        put = training_pb2_grpc.BlobServiceStub(channel).Put
        ref = put(iter([Chunk(data=b"x", holder=holder)]), metadata=credentials("right"), timeout=ANSWER_S)
    assert len(ref.id) == 16 and engine.blobs.holds(ref.id)
    engine.blobs.drop(ref)


ATTACHES = [("worker", 2), ("worker", 2**32 - 1), ("server", 0), ("", 0), ("worker", 0), ("worker", 1)]


@pytest.mark.parametrize(("role", "rank"), ATTACHES)
def test_nobody_attaches_in_a_members_place(served, role, rank):
    """By a rank that is not, or one whose member is there: a replayed Attach."""
    registry = served[0].supervisor.registry
    with open_channel(registry.address) as channel:
        stub = training_pb2_grpc.MemberServiceStub(channel)
        first = Event(attached=Attached(role=role, rank=rank, pid=1))
        with pytest.raises(grpc.RpcError) as refused:
            next(stub.Attach(iter([first]), metadata=credentials(registry.token), timeout=ANSWER_S))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def disorders():
    setup, epoch, finish = Command(job="1", setup=Setup()), Command(job="1", epoch=Epoch()), Command(job="1", finish={})
    return {
        "begins with an epoch": [epoch],
        "set up twice": [setup, setup],
        "another's job": [setup, Command(job="job 0", epoch=Epoch())],
        "ends the members": [setup, Command(job="1", exit={})],
        "no job": [Command(setup=Setup())],
        "nothing at all": [Command(job="1")],
        "finished first": [finish, setup],
    }


@pytest.mark.parametrize("name", disorders())
def test_a_job_out_of_order_is_refused_with_the_reason(served, name):
    with open_channel(served[1]) as channel:
        stub = training_pb2_grpc.TrainingServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.Train(iter(disorders()[name]), metadata=credentials("right"), timeout=ANSWER_S))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert " must " in refused.value.details()


@pytest.mark.parametrize("name", ["../x", "a/b", "\0"])
def test_names_that_no_blob_has_disturb_no_later_job(served, name):
    """The engine drops the blobs of a job that failed when the next job begins."""
    client = TrainingClient(served[1], "right")
    conversation = client.train()
    conversation.send(Command(job="1", setup=Setup()))
    changed = State(model=BlobRef(id=name, nbytes=1))
    conversation.send(Command(job="1", epoch=Epoch(epoch=DEADLY_EPOCH, changed=changed)))
    *_, last = conversation.events()
    assert "worker 1 was lost" in last.failed.message
    train(client, "later")
    client.close()


def test_slow_callers_hold_up_nobody(served):
    """Streams that are opened and say nothing, at every door, for as long as the others' jobs take."""
    engine, address = served
    held = threading.Event()

    def silence():
        held.wait()
        yield from ()

    channels = [open_channel(address) for _ in range(4)]
    calls = [
        channel.stream_stream(method)(silence(), metadata=credentials("right"))
        for channel in channels
        for method in (TRAINING[1], BLOBS[0])
        for _ in range(2)
    ]
    with TrainingClient(address, "right")._channel as channel:
        assert training_pb2_grpc.TrainingServiceStub(channel).Hello(HelloRequest(), metadata=credentials("right"))
    client = TrainingClient(address, "right")
    train(client, "between")
    client.close()
    held.set()
    for one in calls:
        one.cancel()
    for channel in channels:
        channel.close()
