"""The supervisor with real processes and streams: an engine whose members only send answers."""

import math
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fdt.blobs import LocalBlobs
from fdt.errors import UsageError, UserError
from fdt.launch import Exit, LocalLauncher
from fdt.launch.mpirun import MpirunLauncher, find_mpirun
from fdt.rpc.job_pb2 import ArrayData, Data, JobSpec
from fdt.rpc.session_pb2 import Command, Epoch, Event, Failed, Finish, Setup, Suspend
from fdt.security.auth import TOKEN_VARIABLE
from fdt.service.client import TrainingClient
from fdt.service.member import ENGINE_GONE, ENGINE_VARIABLE
from fdt.service.server import serve
from fdt.supervise import Outcome
from fdt.supervise.worker_registry import MemberMessage
from hfdt.engine.coordinator import RanksCoordinator
from hfdt.engine.recovery import RankRecovery
from tests.parallel.echo_engine import ECHO, EchoEngine

DEADLY_EPOCH, ONCE_DEADLY_EPOCH, MPI_EPOCH = 7, 8, 9


class Gone:
    """A launcher whose worker 1 has ended as soon as it starts."""

    def start(self, task):
        return self

    def exits(self):
        return [Exit("worker", 1, "signal 9 (SIGKILL)")]

    def stop(self, grace_s=0):
        pass


LAUNCHERS = [LocalLauncher, pytest.param(MpirunLauncher, marks=pytest.mark.skipif(not find_mpirun(), reason="no MPI"))]


@pytest.fixture(params=LAUNCHERS)
def served(request, tmp_path):
    engine = EchoEngine(request.param(tmp_path), tmp_path)
    running = serve(engine, f"unix:{tmp_path}/engine.sock", "right")
    yield engine, running
    running.stop()
    engine.stop()
    assert not engine.blobs.directory.exists()


def converse(client, job, epoch, *, suspends=False, **options):
    """One job of one epoch; its events by kind."""
    conversation = client.train()
    conversation.send(Command(job=job, setup=Setup(job=JobSpec(options=options))))
    heard = {}
    for event in conversation.events():
        kind = event.WhichOneof("kind")
        heard.setdefault(kind, []).append(getattr(event, kind))
        if kind == "ready":
            conversation.send(Command(job=job, epoch=Epoch(epoch=epoch)))
        elif kind == "epoch_end":
            if suspends:
                conversation.send(Command(job=job, suspend=Suspend()))
            conversation.send(Command(job=job, finish=Finish()))
    conversation.close()
    return heard


def test_a_request_to_suspend_ends_with_its_job(served):
    client = TrainingClient(served[1].address, "right")
    converse(client, "a", 0, suspends=True)
    (ready,) = converse(client, "b", 0)["ready"]
    assert not ready.suspendable, "the ranks would end the epoch of another job"
    client.close()


def test_a_crew_trains_jobs_and_survives_a_killed_member(served):
    _, running = served
    client = TrainingClient(running.address, "right")

    first = converse(client, "1", 3)
    assert [r.notes for r in first["ready"]] == ["note\nrank 0\nrank 1"]
    (end,) = first["epoch_end"]
    assert (end.epoch, end.samples, [w.samples for w in end.workers]) == (3, 11, [5, 6])
    assert "".join(o.text for o in first["output"]) == "hello from 0\n", "rank 0's prints reach the client, once"

    (failure,) = converse(client, "2", DEADLY_EPOCH)["failed"]
    assert "worker 1 was lost: signal 9 (SIGKILL)" in failure.message
    assert "hello from 1" in failure.detail

    assert "finished" in converse(client, "3", 1), "others take their place for the next job"
    client.close()


@pytest.mark.parametrize("options", [{"restarts": "1"}, {"min_np": "1"}], ids=str)
def test_where_it_is_wanted_a_whole_crew_starts_again(served, options):
    client = TrainingClient(served[1].address, "right")
    heard = converse(client, "unlucky", ONCE_DEADLY_EPOCH, **options)
    (fault,) = heard["fault"]
    assert (fault.member, fault.action) == ("worker 1", "restarted from the beginning")
    assert "worker 1 was lost: signal 9 (SIGKILL)" in fault.message
    assert "failed" not in heard
    (ended,) = heard["epoch_end"]
    assert [w.samples for w in ended.workers] == ([5, 6] if "restarts" in options else [5])
    assert len(heard["ready"]) == len(heard["finished"]) == 1
    assert len(converse(client, "next", 0)["epoch_end"][0].workers) == 2, "the next job has all of them"
    client.close()


@pytest.mark.parametrize("served", LAUNCHERS[1:], indirect=True)
def test_the_reason_of_a_failed_mpi_init_is_quoted_whether_mpirun_ends_or_hangs(served, monkeypatch):
    """Open MPI 5.0.11's does either, and at times prints no component; then the setting is named."""
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("OMPI_MCA_pml", "nosuchpml")
    client = TrainingClient(served[1].address, "right")
    (failure,) = converse(client, "1", MPI_EPOCH)["failed"]
    assert re.match(
        r"worker [01] was lost: (exit code 14|no answer): .*(Component: |OMPI_MCA_pml=)nosuchpml", failure.message
    )
    client.close()


class Tight(LocalLauncher):
    """Has room for one worker only, when it starts for the second time."""

    full = False

    def start(self, task):
        if self.full and task.count > 1:
            raise UserError(f"there is room for 1 of {task.count}")
        self.full = True
        return super().start(task)


def test_where_not_all_can_be_started_again_fewer_go_on(tmp_path):
    engine = EchoEngine(Tight(tmp_path), tmp_path)
    running = serve(engine, f"unix:{tmp_path}/engine.sock", "right")
    client = TrainingClient(running.address, "right")
    heard = converse(client, "1", ONCE_DEADLY_EPOCH, restarts="1", min_np="1")
    (lost, tight) = heard["fault"]
    assert "restart 1 of 1" in lost.message
    assert "room for 1 of 2; training continues without it" in tight.message
    assert [w.samples for w in heard["epoch_end"][0].workers] == [5]
    client.close()
    running.stop()
    engine.stop()


@pytest.mark.skipif(not find_mpirun(), reason="no MPI")
def test_a_rank_that_cannot_be_replaced_alone_ends_the_job(tmp_path):
    """mpirun ends the others with it: a coordinator that asks for one in its place would wait for ever."""

    class Replaces(RanksCoordinator):
        def lost(self, role, rank, failure):
            return Outcome(restart=[(role, rank)])

    class Engine(EchoEngine):
        def train(self, commands):
            self.start()
            return self.supervisor.run(Replaces(RankRecovery(self.blobs, 2)), commands)

    engine = Engine(MpirunLauncher(tmp_path), tmp_path)
    running = serve(engine, f"unix:{tmp_path}/engine.sock", "right")
    client = TrainingClient(running.address, "right")
    (failure,) = converse(client, "1", DEADLY_EPOCH)["failed"]
    assert "was lost: signal 9" in failure.message
    client.close()
    running.stop()
    engine.stop()


def test_a_member_lost_between_jobs_is_replaced(served):
    engine, running = served
    client = TrainingClient(running.address, "right")
    assert "finished" in converse(client, "1", 1)
    (pid,) = [attached.pid for (_, rank), attached in engine.supervisor.registry.attached.items() if rank == 1]
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while not engine.supervisor.launched.exits():
        assert time.monotonic() < deadline, "the launcher has not noticed"
        os.sched_yield()
    assert "finished" in converse(client, "2", 1)
    client.close()


def test_the_data_of_a_client_that_is_gone_go_with_it(served):
    engine, running = served
    client = TrainingClient(running.address, "right")
    data = client.blobs.put(b"the data")
    conversation = client.train()
    conversation.send(Command(job="1", setup=Setup(job=JobSpec(data=Data(arrays=ArrayData(arrays=data))))))
    next(conversation.events())
    conversation.cancel()
    deadline = time.monotonic() + 60
    while engine.blobs.holds(data.id):
        assert time.monotonic() < deadline, "the engine kept them"
        os.sched_yield()
    client.close()


def test_a_second_client_hears_that_it_waits_and_may_give_up(served):
    engine, running = served
    client = TrainingClient(running.address, "right")
    first = client.train()
    first.send(Command(job="1", setup=Setup()))
    events = first.events()
    assert next(event for event in events if event.WhichOneof("kind") == "ready")
    impatient, patient = client.train(), client.train()
    for waiting in (impatient, patient):
        assert next(waiting.events()).note.text == "waiting: the engine trains another job"
    impatient.cancel()
    pids = {attached.pid for attached in engine.supervisor.registry.attached.values()}

    first.send(Command(job="1", finish=Finish()))
    assert next(event for event in events if event.WhichOneof("kind") == "finished")
    first.close()
    patient.send(Command(job="2", setup=Setup()))
    assert next(event for event in patient.events() if event.WhichOneof("kind") == "ready")
    assert {attached.pid for attached in engine.supervisor.registry.attached.values()} == pids, (
        "who gave up cost no warm member"
    )
    patient.cancel()
    client.close()


def test_a_wrong_token_is_refused(served):
    _, running = served
    with pytest.raises(UserError, match="was started with another token"):
        TrainingClient(running.address, "wrong")


def test_the_token_is_in_no_command_line_and_no_log(served):
    """It is in the members' environment, which the kernel shows to their own user only."""
    engine, running = served
    client = TrainingClient(running.address, "right")
    converse(client, "1", 1)
    pids = [attached.pid for attached in engine.supervisor.registry.attached.values()]
    token = engine.supervisor.registry.token.encode()
    commands = [file for file in Path("/proc").glob("[0-9]*/cmdline") if token in _read(file)]
    assert commands == [] == [file for file in engine.run_dir.iterdir() if file.is_file() and token in _read(file)]
    assert len(pids) == 2
    for pid in pids:
        assert stat.S_IMODE(Path(f"/proc/{pid}/environ").stat().st_mode) == 0o400
    client.close()


def _read(file):
    try:
        return file.read_bytes()
    except OSError:  # the process has ended
        return b""


def test_members_end_when_the_engine_is_gone(served):
    engine, running = served
    client = TrainingClient(running.address, "right")
    converse(client, "1", 1)
    pids = [attached.pid for attached in engine.supervisor.registry.attached.values()]
    engine.supervisor.registry.close()  # as if the engine's process had died: the streams break
    deadline = time.monotonic() + 60
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a member outlived its engine"
        os.sched_yield()


class Leaves(LocalLauncher):
    """Ends nobody: an mpirun that has died, whose ranks live."""

    def start(self, task):
        self.running = super().start(task)
        return SimpleNamespace(exits=self.running.exits, stop=lambda _: None)


def test_a_member_that_its_launcher_does_not_reach_is_killed(tmp_path):
    launcher = Leaves(tmp_path)
    engine = EchoEngine(launcher, tmp_path)
    running = serve(engine, f"unix:{tmp_path}/engine.sock", "right")
    client = TrainingClient(running.address, "right")
    converse(client, "1", 1)
    pids = [attached.pid for attached in engine.supervisor.registry.attached.values()]
    os.kill(pids[1], signal.SIGSTOP)  # it takes neither `exit` nor SIGTERM
    engine.supervisor.end()
    deadline = time.monotonic() + 60
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a member outlived its supervisor"
        os.sched_yield()
    launcher.running.stop()
    client.close()
    running.stop()
    engine.stop()


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.0.0.1:80", "nonsense", "127.0.0.1:99999"])
def test_only_local_addresses_are_served(served, address):
    with pytest.raises(UsageError, match="Received"):
        serve(served[0], address, "t")


def test_a_port_in_use_is_one_clear_line(served):
    engine, _ = served
    first = serve(engine, "127.0.0.1:0", "t")
    with pytest.raises(UserError, match="in use"):
        serve(engine, first.address, "t")
    first.stop()


def test_blobs_travel_to_callers_on_another_host(served, monkeypatch):
    engine, running = served
    monkeypatch.setattr(LocalBlobs, "holds", lambda self, name: False)
    client = TrainingClient(running.address, "right")
    data = os.urandom(5 << 20)
    ref = client.blobs.put(data)
    assert bytes(engine.blobs.get(ref)) == data == bytes(client.blobs.get(ref))
    engine.blobs.drop(ref)
    with pytest.raises(KeyError):
        client.blobs.get(ref)
    client.close()


def test_a_rank_that_fails_for_want_of_another_is_not_the_one_that_is_named(run_dir, monkeypatch):
    monkeypatch.setattr("fdt.supervise.supervisor.WATCH_S", math.inf)  # the failure is heard before anybody looks
    engine = EchoEngine(Gone(), run_dir)
    engine.start()
    failed = Event(failed=Failed(message="HorovodInternalError: connection closed by peer"))
    engine.supervisor.registry.inbox.put(MemberMessage("worker", 0, failed, engine.supervisor.registry.generation))
    (event,) = engine.train(iter([Command(job="1", setup=Setup())]))
    assert "worker 1 was lost: signal 9 (SIGKILL)" in event.failed.message
    engine.stop()


def test_a_member_that_finds_no_engine_any_more_ends(tmp_path):
    """One that was killed between starting its members and their first word."""
    address = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))  # and closed again without being removed, as by a kill
    given = {ENGINE_VARIABLE: f"unix:{address}", TOKEN_VARIABLE: "right", "FDT_RANK": "0", "FDT_SIZE": "1"}
    env = {**os.environ, **given, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, str(ECHO)], env=env, capture_output=True, text=True, timeout=120)
    assert ended.returncode == ENGINE_GONE
    assert ended.stderr.startswith("worker 0: no engine answered at unix:")
