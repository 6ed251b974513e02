"""The supervisor's state after a job, without any process: events of members and client are simulated."""

import contextlib
import queue
import socket
import time

import pytest

from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.launch import GRACE_S, Task
from fdt.rpc.job_pb2 import JobSpec, State
from fdt.rpc.session_pb2 import (
    Attached,
    Command,
    Commit,
    Epoch,
    EpochEnd,
    Event,
    Failed,
    FeedBatch,
    Finish,
    Finished,
    Progress,
    Ready,
    Setup,
)
from fdt.service.member import SIZE_VARIABLE
from fdt.supervise import supervisor as module
from fdt.supervise.processes import CUT_OFF_GRACE_S, LaunchedProcesses
from fdt.supervise.supervisor import Supervisor
from fdt.supervise.worker_registry import MemberMessage, StreamLost
from hfdt.engine.coordinator import RanksCoordinator
from hfdt.engine.recovery import RankRecovery


class Nobody:
    """A launcher that starts nothing."""

    def start(self, task):
        return self

    def exits(self):
        return []

    def stop(self, grace_s=0):
        pass


@pytest.fixture
def supervisor(tmp_path):
    with contextlib.closing(LocalBlobs.create()) as blobs:
        supervisor = Supervisor("hfdt", tmp_path, blobs, [(Nobody(), Task("worker", ("nobody",), 1))])
        supervisor.start()
        yield supervisor
        supervisor.close()


class Counting(Nobody):
    """`sizes`: of what was started. With `refuses` it starts nothing."""

    def __init__(self, refuses=False):
        self.sizes, self.running, self._refuses = [], 0, refuses

    def start(self, task):
        if self._refuses:
            raise UserError("no room")
        self.sizes.append((task.count, task.env[SIZE_VARIABLE]))
        self.running += 1
        return self

    def stop(self, grace_s=0):
        self.running -= 1


def test_a_crew_that_went_on_with_fewer_is_whole_again_at_its_next_start():
    launcher = Counting()
    launched = LaunchedProcesses([(launcher, Task("worker", ("nobody",), 3))], {})
    launched.start()
    assert launched.complete()
    launched.stop()
    launched.resize(2)
    launched.start()
    assert not launched.complete() and launched.complete(2) and launched.counts == {"worker": 2}
    launched.stop()
    launched.resize()
    launched.start()
    assert launched.complete() and launcher.sizes == [(3, "3"), (2, "2"), (3, "3")]


def test_half_a_crew_is_ended(tmp_path):
    launchers = [Counting(), Counting(refuses=True)]
    with contextlib.closing(LocalBlobs.create()) as blobs:
        tasks = [Task("worker", ("nobody",), 1), Task("server", ("nobody",), 1)]
        supervisor = Supervisor("nfdt", tmp_path, blobs, list(zip(launchers, tasks, strict=True)))
        with pytest.raises(UserError, match="no room"):
            supervisor.start()
        assert launchers[0].running == 0 and not supervisor.launched
        supervisor.close()


class Job:
    """One job of one rank, step by step."""

    def __init__(self, supervisor, blobs, **options):
        self._supervisor, self._commands = supervisor, queue.SimpleQueue()
        supervisor.start()
        self.events = supervisor.run(RanksCoordinator(RankRecovery(blobs, 1)), iter(self._commands.get, None))
        supervisor.registry.inbox.put(
            MemberMessage("worker", 0, Event(progress=Progress()), supervisor.registry.generation)
        )
        assert next(self.events).HasField("progress"), "from here on the supervisor listens"
        self.say(setup=Setup(job=JobSpec(options=options)))
        self.hear(ready=Ready())
        assert next(self.events).HasField("ready")
        self.say(epoch=Epoch())

    def say(self, **kind):
        """Returns when the supervisor has it."""
        self._put(Command(job="j", **kind))

    def _put(self, command):
        inbox = self._supervisor.registry.inbox
        before, deadline = inbox.qsize(), time.monotonic() + 30
        self._commands.put(command)
        while inbox.qsize() == before:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def hear(self, supervisor=None, **kind):
        self._supervisor.registry.inbox.put(
            MemberMessage("worker", 0, Event(job="j", **kind), supervisor or self._supervisor.registry.generation)
        )

    def commit(self, supervisor=None):
        model, metrics = (self._supervisor._blobs.put(word) for word in (b"model", b"metrics"))
        self.hear(supervisor, commit=Commit(state=State(model=model), metrics=metrics))

    def leave(self):
        self._put(None)
        self.events.close()


def test_nothing_is_left_of_a_client_that_went_in_the_midst_of_a_commit(supervisor):
    blobs = supervisor._blobs
    there = sorted(blobs.directory.iterdir())
    job = Job(supervisor, blobs)
    job.say(feed=FeedBatch(name="x", arrays=blobs.put(b"drawn")))
    job.commit()
    assert next(job.events).HasField("commit"), "on its way to a client that never takes it"
    job.commit()
    job.leave()
    assert sorted(blobs.directory.iterdir()) == there
    old = supervisor.registry.generation
    job = Job(supervisor, blobs)
    job.commit(supervisor=old)
    job.hear(failed=Failed())
    assert [event.WhichOneof("kind") for event in job.events] == ["failed"]
    assert sorted(blobs.directory.iterdir()) == there, "nor of the members it had"
    job.leave()


def test_a_client_that_cannot_drop_leaves_nothing_behind_when_its_job_ends(supervisor):
    blobs = supervisor._blobs
    there = sorted(blobs.directory.iterdir())
    job = Job(supervisor, blobs)
    for epoch in range(100):
        job.hear(epoch_end=EpochEnd(epoch=epoch, state=State(model=blobs.put(b"model"))))
        assert next(job.events).HasField("epoch_end")
        job.say(epoch=Epoch(epoch=epoch + 1))
    job.say(finish=Finish())
    job.hear(finished=Finished())
    assert [event.WhichOneof("kind") for event in job.events] == ["finished"]
    assert sorted(blobs.directory.iterdir()) == there
    job.leave()


def test_nothing_is_waited_for_or_started_for_a_client_that_is_gone(supervisor, monkeypatch):
    """As by Ctrl-C just after a rank was killed: the engine ends, instead of restarting first."""
    monkeypatch.setattr(module, "EXPLAIN_S", float("inf"))  # its launcher never tells how the rank ended
    started = []
    monkeypatch.setattr(supervisor, "_launch", started.append)
    job, registry = Job(supervisor, supervisor._blobs, restarts="1"), supervisor.registry
    registry.inbox.put(MemberMessage("worker", 0, StreamLost(registry._outbox("worker", 0)), registry.generation))
    job._put(None)
    assert [event.WhichOneof("kind") for event in job.events] == ["fault"]
    assert started == []


def test_a_launcher_that_hangs_is_quoted(supervisor, monkeypatch):
    """Open MPI's mpirun may hang when a rank has ended within MPI_Init, but it has printed the reason."""
    monkeypatch.setattr(module, "EXPLAIN_S", 0.0)
    monkeypatch.setattr(Nobody, "reason", lambda self: "no such component", raising=False)
    job, registry = Job(supervisor, supervisor._blobs), supervisor.registry
    registry.inbox.put(MemberMessage("worker", 0, StreamLost(registry._outbox("worker", 0)), registry.generation))
    assert next(job.events).failed.message.startswith("worker 0 was lost: no answer: no such component; its log is ")
    job.leave()


@pytest.mark.parametrize(("remote", "abandoned"), [(False, False), (True, False), (True, True)])
def test_processes_on_a_host_that_is_cut_off_have_less_time_to_end(supervisor, monkeypatch, remote, abandoned):
    """No launcher was waited for where the client is gone: the host may be there."""
    graces = []
    monkeypatch.setattr(module, "EXPLAIN_S", 0.0)
    monkeypatch.setattr(module, "EXPLAIN_REMOTE_S", 0.0)
    monkeypatch.setattr(Nobody, "stop", lambda self, grace_s=0: graces.append(grace_s))
    job, registry = Job(supervisor, supervisor._blobs), supervisor.registry
    registry.attached = {("worker", 0): Attached(host="other" if remote else socket.gethostname())}
    registry.inbox.put(MemberMessage("worker", 0, StreamLost(registry._outbox("worker", 0)), registry.generation))
    if abandoned:
        job._put(None)
    assert [event.WhichOneof("kind") for event in job.events] == ["attached", "failed"]
    if not abandoned:
        job.leave()
    supervisor.start()
    supervisor.end()
    assert graces == [CUT_OFF_GRACE_S if remote and not abandoned else GRACE_S, GRACE_S]


def test_processes_have_their_time_to_end_again_once_the_one_that_was_cut_off_is_replaced(monkeypatch):
    graces = []
    monkeypatch.setattr(Nobody, "stop", lambda self, grace_s=0: graces.append(grace_s))
    monkeypatch.setattr(Nobody, "restart", lambda self, rank: None, raising=False)
    launched = LaunchedProcesses([(Nobody(), Task("worker", ("python",), 2))], {})
    for replaced in ([0], [1], [0, 1]):
        launched.start()
        launched.mark_cut_off("worker", 0)
        for rank in replaced:
            launched.restart("worker", rank)
        launched.stop()
    assert graces == [GRACE_S, CUT_OFF_GRACE_S, GRACE_S]
