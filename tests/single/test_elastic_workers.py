"""`nfdt join` and --join-at without worker processes: admission, messages to other workers, and cleanup."""

import os
import re
import threading
from pathlib import Path

import click.testing
import pytest

from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.rpc.join_pb2 import JoinRequest
from fdt.rpc.session_pb2 import Attached, Command, EpochEnd, Event, Failed, Setup
from fdt.security.auth import credentials
from fdt.service.member import is_our_socket, reach, reachable_address
from fdt.service.transport import open_channel
from fdt.supervise import Outcome, joining
from fdt.supervise.joining import JoinConnection, JoinEndpoint, JoinListener, admit_workers
from fdt.supervise.processes import MOST, WorkerJoined, WorkerLeft
from fdt.supervise.supervisor import Supervisor
from fdt.supervise.worker_registry import MemberMessage, WorkerRegistry
from nfdt import cli, join_command
from nfdt.engine.coordinator import ServersCoordinator

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def registry(run_dir):
    blobs = LocalBlobs.create()
    registry = WorkerRegistry("nfdt", run_dir, blobs, {"worker": 2})
    yield registry
    registry.close()
    blobs.close()


def listener(registry):
    admit = admit_workers(registry, 2, None)
    return JoinListener(JoinEndpoint("127.0.0.1:0", "secret"), registry.run_dir, admit, "nfdt")


@pytest.fixture
def reception(registry):
    reception = listener(registry)
    yield reception
    registry.release_all()
    reception.close()
    assert not list(registry.run_dir.iterdir())


def attach(registry, rank):
    """An elastic worker's stream to the registry, its commands and what ends it."""
    from fdt.rpc.training_pb2_grpc import MemberServiceStub

    channel, said = open_channel(registry.address), threading.Event()

    def words():
        yield Event(attached=Attached(role="worker", rank=rank, host="there"))
        said.wait()

    return MemberServiceStub(channel).Attach(words(), metadata=credentials(registry.token)), said


def test_who_joins_gets_free_ranks_and_what_a_member_must_know(registry, reception):
    first, second = (JoinConnection(reception.address, "secret", None, count, "nfdt") for count in (2, 1))
    assert [list(call.place.ranks) for call in (first, second)] == [[2, 3], [4]]
    assert (first.place.size, first.place.token, first.place.addresses) == (2, registry.token, registry.address)
    commands, said = attach(registry, 3)
    arrival = registry.inbox.get(timeout=60)
    assert (arrival.rank, arrival.what) == (3, WorkerJoined()) and registry.attached["worker", 3].host == "there"
    first.close()
    gone = {registry.inbox.get(timeout=60) for _ in range(2)}
    assert gone == {MemberMessage("worker", rank, WorkerLeft("left"), 0) for rank in (2, 3)}
    assert [command.WhichOneof("kind") for command in commands] == ["exit"], "whoever is left of it ends"
    said.set()
    third = JoinConnection(reception.address, "secret", None, 1, "nfdt")
    assert list(third.place.ranks) == [2]
    registry.release_all()
    for call in (second, third):
        assert call.over.wait(60)
        call.check()  # the run has ended, as runs do
        call.close()


def test_a_full_disk_is_said_in_one_line(registry, monkeypatch):
    write_anew = joining.write_anew

    def full(path, text):
        write_anew(path, "")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(joining, "write_anew", full)
    with pytest.raises(UserError, match="cannot be written beside the logs: .*No space left"):
        listener(registry)
    assert not list(registry.run_dir.iterdir())


def test_who_is_not_let_in_hears_why_in_one_line(registry, reception, monkeypatch):
    def refused(address=reception.address, token="secret", workers=1):
        with pytest.raises(UserError) as error:
            JoinConnection(address, token, None, workers, "nfdt")
        return str(error.value)

    assert "was started with another token" in refused(token="wrong")
    assert f"Received: {MOST + 1}" in refused(workers=MOST + 1)
    assert "where another kind of server listens" in refused(address=registry.address, token=registry.token)
    assert re.search("a run that workers can join does not answer at", refused(address="127.0.0.1:1"))
    monkeypatch.setattr(joining, "JoinRequest", lambda **fields: JoinRequest(**{**fields, "version": "0.0"}))
    assert "a worker must have the run's version" in refused()
    monkeypatch.setattr(joining, "JoinRequest", lambda **fields: JoinRequest(**{**fields, "engine": "hfdt"}))
    assert "the run is nfdt's; use `nfdt join`" in refused()
    assert registry.elastic.release_all() == [] and registry.inbox.empty()


def test_a_run_out_of_reach_is_said_before_a_worker_starts(registry, reception, tmp_path):
    call = JoinConnection(reception.address, "secret", None, 1, "nfdt")
    call.place.addresses = f"unix:{tmp_path}/elsewhere.sock"
    with pytest.raises(UserError, match="accepts workers of the same user, host and"):
        join_command._start(call.place, reception.address, tmp_path)
    call.close()


def test_a_lost_guest_is_no_loss_to_the_next_of_its_rank(registry):
    (rank,), group = registry.reserve(1)
    registry.release_worker(rank, "lost")
    assert registry.inbox.get(timeout=1).what == WorkerLeft("lost")
    assert rank in registry.elastic, "its host may still hold the place"
    registry.release([rank], group)
    assert registry.reserve(1)[0] == [rank]


@pytest.fixture
def supervisor(run_dir):
    blobs = LocalBlobs.create()
    supervisor = Supervisor("nfdt", run_dir, blobs, [])
    supervisor.registry.members = {"worker": 2}
    yield supervisor
    supervisor.close()
    blobs.close()


def heard(supervisor, rank, **kind):
    """What the supervisor makes of a worker's event, in the first job."""
    coordinator = ServersCoordinator(2, ["ps"], supervisor._blobs)
    supervisor._from_client(coordinator, Command(job="1", setup=Setup()))
    return supervisor._from_member(
        coordinator, MemberMessage("worker", rank, Event(**kind), supervisor.registry.generation)
    ), coordinator


def test_a_guest_that_came_too_late_for_the_last_job_trains_the_next(supervisor):
    (rank,), _ = supervisor.registry.reserve(1)
    outcome, _ = heard(supervisor, rank, job="0", failed=Failed(message="no such blob"))
    assert outcome == Outcome() and supervisor.registry.inbox.empty()
    heard(supervisor, rank, job="1", failed=Failed(message="no memory"))
    assert supervisor.registry.inbox.get(timeout=1).what == WorkerLeft("failed", "no memory")


def test_the_last_words_of_a_dismissed_guest_harm_nobody(supervisor):
    (rank,), group = supervisor.registry.reserve(1)
    supervisor.registry.release([rank], group)
    outcome, coordinator = heard(supervisor, rank, job="1", failed=Failed(message="interrupted"))
    assert outcome == Outcome() and not coordinator.failed
    metrics = supervisor._blobs.put(b"metrics")
    outcome, _ = heard(supervisor, rank, job="1", epoch_end=EpochEnd(metrics=metrics))
    assert outcome == Outcome(drop=[metrics])


def test_a_server_that_does_not_listen_yet_is_called_where_it_will(registry, monkeypatch):
    both = "unix:/not/there/yet.sock,0.0.0.0:7"
    monkeypatch.setenv("FDT_ENGINE", f"{registry.address},10.0.0.1:9")
    assert reach(both) == "unix:/not/there/yet.sock"
    monkeypatch.setenv("FDT_ENGINE", "unix:/of/another/host.sock,10.0.0.1:9")
    assert (reach(both), reach("host2:7")) == ("10.0.0.1:7", "host2:7")


def test_a_socket_in_another_users_directory_is_not_ours(monkeypatch):
    def is_socket(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_socket", is_socket)
    assert not is_our_socket(Path("/dev/shm/theirs/hub.sock"))
    assert reachable_address("unix:/dev/shm/theirs/hub.sock,10.0.0.1:9") == "10.0.0.1:9"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["join"], "Missing argument 'HOST:PORT'"),
        (["join", "nowhere"], "an address must be HOST:PORT or unix:PATH. Received: 'nowhere'"),
        (["join", "unix:/x"], "the address must be HOST:PORT"),
        (["join", "127.0.0.1:1"], "`nfdt join` needs a token"),
        (["join", "10.0.0.1:1"], "needs TLS"),
        (["run", "--join-at", "x", "SCRIPT"], "an address must be HOST:PORT"),
        (["run", "--join-at", "0.0.0.0:0", "SCRIPT"], "needs TLS"),
        (["run", "--join-at", "0", "--server", "127.0.0.1:1", "SCRIPT"], "--join-at must be given to `nfdt serve`"),
    ],
)
def test_bad_words_are_said_in_one_line(argv, said, tmp_path, monkeypatch):
    monkeypatch.delenv("FDT_TOKEN", raising=False)
    script = tmp_path / "script.py"
    script.write_text("import keras\nmodel = keras.Model()\nmodel.fit()\n")
    runner = click.testing.CliRunner()
    result = runner.invoke(cli.main, [str(script) if word == "SCRIPT" else word for word in argv], standalone_mode=True)
    assert result.exit_code != 0
    (line,) = result.stderr.strip().splitlines()
    assert said in line, line


def test_a_detached_run_takes_the_users_token(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text("import keras\nmodel = keras.Model()\nmodel.fit()\n")
    started = []
    monkeypatch.setattr(cli.detach, "start", lambda request: started.append(os.environ.get("FDT_TOKEN")) or 0)
    monkeypatch.setenv("FDT_TOKEN", "hers")
    words = ["run", "--detach", "--join-at", "0", str(tmp_path / "script.py")]
    assert click.testing.CliRunner().invoke(cli.main, words).exit_code == 0
    assert started == ["hers"]
