"""The server of a pool around stubs of engines: slots, queue, cancelling, users and their rights, what is left."""

import contextlib
import datetime
import threading
import time

import click.testing
import grpc
import pytest

from fdt.cli.hosts import make
from fdt.errors import UserError
from fdt.launch.hosts import Host
from fdt.rpc import training_pb2 as pb
from fdt.rpc.session_pb2 import Command, Event, Finish, Finished, JobRequest, Ready, Setup
from fdt.rpc.training_pb2_grpc import PoolServiceStub
from fdt.security.auth import TlsIdentity, credentials
from fdt.security.authority import Authority
from fdt.service.client import TrainingClient
from fdt.service.transport import open_channel
from frontends.pool.engines import Allocation, EnginePool
from frontends.pool.schedule import Quotas
from frontends.pool.service import PoolServicer

WAIT_S = 60


class Engine:
    """Says Ready, and Finished when it is told to finish."""

    name, run_dir = "hfdt", None

    def __init__(self, directory, allocation):
        self.directory, self.slots, self.blobs = directory, allocation.slots, allocation.blobs
        self.workers, self.stopped = allocation.workers, False

    def start(self): ...

    def train(self, commands):
        if self.workers == 3:
            raise UserError("no host answers")
        return self._trained(commands)

    def _trained(self, commands):
        for command in commands:
            if command.HasField("setup"):
                yield Event(job=command.job, ready=Ready(notes=f"slots {self.slots}"))
            if command.HasField("finish"):
                yield Event(job=command.job, finished=Finished())
                return

    def stop(self):
        self.stopped = True


@pytest.fixture
def pool(tmp_path):
    engines = EnginePool(4, Engine, tmp_path)
    yield engines
    engines.stop()


@pytest.fixture
def served(pool):
    """The address of a pool of four slots, which tells no users apart."""
    servicer = PoolServicer("hfdt", pool)
    running = servicer.listen(f"unix:{pool.blobs.directory}/s.sock", "right")
    yield running.address
    running.stop()


class Job:
    """A job at a server, once it has been told that it trains or waits."""

    def __init__(self, address, slots=0, identity=None, blob=b"", **request):
        self.client = TrainingClient(address, "right", identity, JobRequest(workers=slots, **request))
        setup = Setup()
        if blob:
            setup.job.program.config.CopyFrom(self.client.blobs.put(blob))
        self.conversation = self.client.train()
        self.conversation.send(Command(job="j", setup=setup))
        self.events = self.conversation.events()
        self.said = self.next()

    def next(self):
        """The next event's text: of the note, the failure, or of Ready."""
        event = next(self.events)
        kind = event.WhichOneof("kind")
        return {"note": event.note.text, "failed": event.failed.message, "ready": event.ready.notes}.get(kind, kind)

    def finish(self):
        self.conversation.send(Command(job="j", finish=Finish()))
        assert self.next() == "finished"
        assert list(self.events) == []
        self.close()

    def close(self):
        self.conversation.cancel()
        self.client.close()


@contextlib.contextmanager
def pool_service(address, identity=None):
    with open_channel(address, identity) as channel:
        stub = PoolServiceStub(channel)
        yield lambda method, request: getattr(stub, method)(request, metadata=credentials("right"), timeout=WAIT_S)


def queue(address, identity=None):
    """(number, state, slots, reason) of the jobs, and the free slots."""
    with pool_service(address, identity) as call:
        reply = call("Queue", pb.QueueRequest())
    return [(job.number, job.state, job.slots, job.reason) for job in reply.jobs], reply.free


def until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline


def cancel(address, number, identity=None):
    with pool_service(address, identity) as call:
        call("Cancel", pb.CancelRequest(number=number))


def refusal(*given, **named):
    """The status and words with which a cancel is refused."""
    with pytest.raises(grpc.RpcError) as refused:
        cancel(*given, **named)
    return refused.value.code(), refused.value.details()


# -- slots and the queue ----------------------------------------------------------------------------------------------
def test_jobs_train_at_the_same_time_on_slots_of_their_own_and_others_wait(served):
    one, two = Job(served, 1), Job(served, 2)
    assert (one.said, two.said) == ("slots (0,)", "slots (1, 2)")
    waiting = Job(served, 2)
    assert waiting.said == "job 3 is pending: 1 of 4 slots are free, 0 other jobs are pending"
    assert queue(served) == ([(1, "RUNNING", 1, ""), (2, "RUNNING", 2, ""), (3, "PENDING", 2, "Resources")], 1)
    two.finish()
    assert waiting.next() == "slots (1, 2)", "the warm workers of job 2"
    one.finish()
    waiting.finish()
    until(lambda: queue(served) == ([], 4))


def test_a_job_without_a_number_of_workers_gets_all(served):
    with contextlib.closing(TrainingClient(served, "right")) as client:
        assert client.hello.workers == 4
    job = Job(served)
    assert job.said == "slots (0, 1, 2, 3)"
    job.finish()


def test_a_job_that_is_too_large_fails_at_once(served):
    job = Job(served, 5, blob=b"x" * 100)
    assert job.said == "the job needs 5 slots, and 4 are all that are there for a job"
    job.close()


def test_slots_of_an_engine_that_cannot_start_are_free_again(served):
    job = Job(served, 3)
    assert job.said == "no host answers"
    job.close()
    until(lambda: queue(served) == ([], 4))


def test_idle_engines_end_where_a_job_needs_their_slots(pool):
    with pool.engine(1) as one, pool.engine(2) as two:
        assert not set(one.slots) & set(two.slots)
    with pool.engine(2) as again:
        assert again is two, "it is warm"
    with pool.engine(4) as whole:
        assert one.stopped and two.stopped and whole.slots == (0, 1, 2, 3)
        assert (one.directory.name, whole.directory) == ("slot-0", pool.logs)


def test_an_engine_waits_for_slots_that_another_thread_frees(pool):
    stopping, may_stop = threading.Event(), threading.Event()
    with pool.engine(4) as whole:
        whole.stop = lambda: (stopping.set(), may_stop.wait(WAIT_S))
    got = []

    def take():
        with pool.engine(2) as engine:
            got.append(engine.slots)
            both.wait(WAIT_S)

    both = threading.Barrier(2)
    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert stopping.wait(WAIT_S) and not got, "old members still run on all slots"
    may_stop.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(got) == [(0, 1), (2, 3)]


def test_an_engine_that_is_made_while_the_server_stops_ends_too(tmp_path):
    made = []

    def make(directory, allocation):
        pool.stop()
        made.append(Engine(directory, allocation))
        return made[0]

    pool = EnginePool(1, make, tmp_path)
    with pytest.raises(UserError, match="the server is stopping"), pool.engine(1):
        pass
    assert made[0].stopped


def test_slots_are_those_of_the_hosts_in_order(pool):
    hosts = [Host("a", 2), Host("b", 2)]
    assert Allocation((1, 2), pool.blobs).hosts(hosts, 4) == [Host("a", 1), Host("b", 1)]
    assert Allocation((0, 1, 2, 3), pool.blobs).hosts([Host("a", 9)], 4) == [Host("a", 9)], "servers get the rest"
    assert Allocation((0,), pool.blobs).hosts([], 4) == []


# -- jobs that end otherwise ------------------------------------------------------------------------------------------
def test_a_cancelled_job_fails_with_the_reason_whether_it_waits_or_trains(served):
    training, waiting = Job(served), Job(served, blob=b"x" * 100)
    cancel(served, 2)
    assert waiting.next() == "job 2 was cancelled"
    cancel(served, 1)
    assert training.next() == "job 1 was cancelled"
    for job in (training, waiting):
        assert list(job.events) == []
        job.close()
    until(lambda: queue(served) == ([], 4))
    assert refusal(served, 2) == (grpc.StatusCode.NOT_FOUND, "no job 2 is pending or running")


def test_a_client_that_goes_leaves_the_queue_and_its_blobs_go_too(served, pool):
    training = Job(served)
    files = set(pool.blobs.directory.iterdir())
    waiting = Job(served, blob=b"x" * 100)
    assert set(pool.blobs.directory.iterdir()) != files
    waiting.conversation.cancel()
    until(lambda: len(queue(served)[0]) == 1)
    until(lambda: set(pool.blobs.directory.iterdir()) == files)
    waiting.close()
    training.close()
    until(lambda: queue(served) == ([], 4))
    assert set(pool.blobs.directory.iterdir()) == files


def test_whole_pools_give_all_slots_to_each_job(pool):
    servicer = PoolServicer("nfdt", pool, whole=True)
    running = servicer.listen(f"unix:{pool.blobs.directory}/whole.sock", "right")
    job = Job(running.address, 2)
    assert job.said == "this server gives all its 4 workers to each job; leave -np out"
    job.close()
    running.stop()


# -- users ------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certs")
    make(directory, ["127.0.0.1"], datetime.timedelta(days=1), ["alice", "bob", "root"])
    authority = Authority.load(
        (directory / "ca.pem").read_text(), (directory / "ca.key").read_text(), datetime.timedelta(1)
    )
    for file, name in (("odd", "two\nlines"),):
        for suffix, text in zip((".pem", ".key"), authority.sign_user(name), strict=True):
            (directory / f"{file}{suffix}").write_text(text)
    return lambda name: TlsIdentity.read(directory / f"{name}.pem", directory / f"{name}.key", directory / "ca.pem")


@pytest.fixture
def users(pool, certs):
    """The address of a pool whose users have certificates; each may have three slots, and bob one."""
    servicer = PoolServicer("hfdt", pool, Quotas.parse("2,bob=1"), ["root"])
    running = servicer.listen("127.0.0.1:0", "right", certs("127.0.0.1"))
    yield running.address
    running.stop()


def test_quotas_are_those_of_the_name_in_the_certificate(users, certs):
    alice, bob = Job(users, 0, certs("alice")), Job(users, 0, certs("bob"))
    assert (alice.said, bob.said) == ("slots (0, 1)", "slots (2,)")
    waiting = Job(users, 1, certs("bob"))
    assert queue(users, certs("bob"))[0][2] == (3, "PENDING", 1, "Quota")
    bob.finish()
    assert waiting.next() == "slots (2,)"
    for job in (alice, waiting):
        job.finish()
    with contextlib.closing(TrainingClient(users, "right", certs("bob"))) as client:
        assert client.hello.workers == 1


def test_only_its_user_and_an_administrator_cancel_a_job(users, certs):
    alice = Job(users, 1, certs("alice"))
    said = "job 1 is alice's, and bob is no administrator of the server"
    assert refusal(users, 1, certs("bob")) == (grpc.StatusCode.PERMISSION_DENIED, said)
    cancel(users, 1, certs("root"))
    assert alice.next() == "job 1 was cancelled by root"
    alice.close()


def test_only_an_administrator_gives_a_priority_above_0(users, certs):
    alice = Job(users, 1, certs("alice"), priority=1)
    assert alice.said == "a priority above 0 needs an administrator of the server. Received: 1"
    alice.close()
    for name, priority in (("alice", -1), ("root", 1)):
        job = Job(users, 1, certs(name), priority=priority)
        assert job.said == "slots (0,)"
        job.finish()


def test_a_certificate_that_names_no_user_is_refused(users, certs):
    with pytest.raises(UserError):
        TrainingClient(users, "right", certs("odd"))
    with pytest.raises(grpc.RpcError, match="must have one common name"):
        queue(users, certs("odd"))


def test_a_users_certificate_is_no_servers(pool, certs):
    running = PoolServicer("hfdt", pool).listen("127.0.0.1:0", "right", certs("alice"))
    with pytest.raises(UserError, match="certificate"):
        TrainingClient(running.address, "right", certs("bob"))
    running.stop()


# -- the command ------------------------------------------------------------------------------------------------------
def test_the_command_lists_and_cancels(served, monkeypatch):
    from hfdt.cli import main

    monkeypatch.setenv("FDT_TOKEN", "right")

    def said(*words):
        monkeypatch.setenv("FDT_TOKEN", "right")
        return click.testing.CliRunner().invoke(main, ["queue", "--server", served, *words])

    assert said().output == "4 of 4 slots are free\n"
    training, waiting = Job(served, name="a\x1b[31m.py", priority=2), Job(served, 1)
    header, first, second, free = said().output.splitlines()
    assert header.split() == ["JOB", "USER", "STATE", "PRIORITY", "SLOTS", "TIME", "REASON", "NAME"]
    assert first.split()[:5] == ["1", "-", "RUNNING", "2", "4"] and first.endswith("a?[31m.py")
    assert second.split()[:5] == ["2", "-", "PENDING", "0", "1"] and "Resources" in second
    assert free == "0 of 4 slots are free"
    assert said("--cancel", "2", "--cancel", "1").output == "job 2 is cancelled\njob 1 is cancelled\n"
    for job in (training, waiting):
        job.close()
    until(lambda: '"jobs": []' in said("--json").output)
    with pytest.raises(SystemExit):
        main(["queue", "--server", served, "--cancel", "9"])
