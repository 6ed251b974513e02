"""`nfdt join` and --join-at without workers: who is let in, what is said to the others, what is left behind."""

import os
import re
import threading
from pathlib import Path

import click.testing
import pytest

from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.rpc.session_pb2 import Attached, Command, EpochEnd, Event, Failed, Setup
from fdt.service.auth import credentials
from fdt.service.crew import Crew
from fdt.service.guests import MOST, Came, Left
from fdt.service.hub import Arrival, Hub
from fdt.service.member import at_hand, is_our_socket, reach
from fdt.service.outcome import Outcome
from fdt.service.transport import open_channel
from nfdt import cli
from nfdt.coordinator import ServersCoordinator
from nfdt.joining import guest
from nfdt.joining import reception as reception_module
from nfdt.joining.guest import Call
from nfdt.joining.reception import Invitation, Reception

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def hub(run_dir):
    blobs = LocalBlobs.create()
    hub = Hub("nfdt", run_dir, blobs)
    hub.members = {"worker": 2}
    yield hub
    hub.close()
    blobs.close()


@pytest.fixture
def reception(hub):
    reception = Reception(Invitation("127.0.0.1:0", "secret"), hub, 2, None)
    yield reception
    hub.dismiss_all()
    reception.close()
    assert not list(hub.run_dir.iterdir())


def attach(hub, rank):
    """A guest's stream to the hub, its commands and what ends it."""
    from fdt.rpc.training_pb2_grpc import MemberServiceStub

    channel, said = open_channel(hub.address), threading.Event()

    def words():
        yield Event(attached=Attached(role="worker", rank=rank, host="there"))
        said.wait()

    return MemberServiceStub(channel).Attach(words(), metadata=credentials(hub.token)), said


def test_who_joins_gets_free_ranks_and_what_a_member_must_know(hub, reception):
    first, second = (Call(reception.address, "secret", None, count) for count in (2, 1))
    assert [list(call.place.ranks) for call in (first, second)] == [[2, 3], [4]]
    assert (first.place.size, first.place.token, first.place.addresses) == (2, hub.token, hub.address)
    commands, said = attach(hub, 3)
    arrival = hub.inbox.get(timeout=10)
    assert (arrival.rank, arrival.what) == (3, Came()) and hub.attached["worker", 3].host == "there"
    first.close()
    gone = {hub.inbox.get(timeout=10) for _ in range(2)}
    assert gone == {Arrival("worker", rank, Left("left"), 0) for rank in (2, 3)}
    assert [command.WhichOneof("kind") for command in commands] == ["exit"], "whoever is left of it ends"
    said.set()
    third = Call(reception.address, "secret", None, 1)
    assert list(third.place.ranks) == [2]
    hub.dismiss_all()
    for call in (second, third):
        assert call.over.wait(10)
        call.check()  # the run has ended, as runs do
        call.close()


def test_a_full_disk_is_said_in_one_line(hub, monkeypatch):
    write_anew = reception_module._write_anew

    def full(path, text):
        write_anew(path, "")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reception_module, "_write_anew", full)
    with pytest.raises(UserError, match="must find room beside its logs. Received: .*No space left"):
        Reception(Invitation("127.0.0.1:0", "secret"), hub, 2, None)
    assert not list(hub.run_dir.iterdir())


def test_who_is_not_let_in_hears_why_in_one_line(hub, reception, monkeypatch):
    def refused(address=reception.address, token="secret", workers=1):
        with pytest.raises(UserError) as error:
            Call(address, token, None, workers)
        return str(error.value)

    assert "the token must be the one that" in refused(token="wrong")
    assert f"Received: {MOST + 1}" in refused(workers=MOST + 1)
    assert "where another kind of server listens" in refused(address=hub.address, token=hub.token)
    assert re.search("a run that takes workers must listen at .* no answer", refused(address="127.0.0.1:1"))
    monkeypatch.setattr(guest, "__version__", "0.0")
    assert "a worker must have the run's version" in refused()
    assert hub.guests.dismiss_all() == [] and hub.inbox.empty()


def test_a_run_out_of_reach_is_said_before_a_worker_starts(hub, reception, tmp_path):
    call = Call(reception.address, "secret", None, 1)
    call.place.addresses = f"unix:{tmp_path}/elsewhere.sock"
    with pytest.raises(UserError, match="takes workers of its own user on its own host"):
        guest._start(call.place, reception.address, tmp_path)
    call.close()


def test_a_lost_guest_is_no_loss_to_the_next_of_its_rank(hub):
    (rank,), party = hub.invite(1)
    hub.dismissed(rank, "lost")
    assert hub.inbox.get(timeout=1).what == Left("lost")
    assert rank in hub.guests, "its host may still hold the place"
    hub.dismiss([rank], party)
    assert hub.invite(1)[0] == [rank]


@pytest.fixture
def crew(run_dir):
    blobs = LocalBlobs.create()
    crew = Crew("nfdt", run_dir, blobs, [])
    crew.hub.members = {"worker": 2}
    yield crew
    crew.close()
    blobs.close()


def heard(crew, rank, **kind):
    """What the crew makes of a worker's event, in the first job."""
    coordinator = ServersCoordinator(2, ["ps"], crew._blobs)
    crew._from_client(coordinator, Command(job="1", setup=Setup()))
    return crew._from_member(coordinator, Arrival("worker", rank, Event(**kind), crew.hub.crew)), coordinator


def test_a_guest_that_came_too_late_for_the_last_job_trains_the_next(crew):
    (rank,), _ = crew.hub.invite(1)
    outcome, _ = heard(crew, rank, job="0", failed=Failed(message="no such blob"))
    assert outcome == Outcome() and crew.hub.inbox.empty()
    heard(crew, rank, job="1", failed=Failed(message="no memory"))
    assert crew.hub.inbox.get(timeout=1).what == Left("failed", "no memory")


def test_the_last_words_of_a_dismissed_guest_harm_nobody(crew):
    (rank,), party = crew.hub.invite(1)
    crew.hub.dismiss([rank], party)
    outcome, coordinator = heard(crew, rank, job="1", failed=Failed(message="interrupted"))
    assert outcome == Outcome() and not coordinator.failed
    metrics = crew._blobs.put(b"metrics")
    outcome, _ = heard(crew, rank, job="1", epoch_end=EpochEnd(metrics=metrics))
    assert outcome == Outcome(drop=[metrics])


def test_a_server_that_does_not_listen_yet_is_called_where_it_will(hub, monkeypatch):
    both = "unix:/not/there/yet.sock,0.0.0.0:7"
    monkeypatch.setenv("FDT_ENGINE", f"{hub.address},10.0.0.1:9")
    assert reach(both) == "unix:/not/there/yet.sock"
    monkeypatch.setenv("FDT_ENGINE", "unix:/of/another/host.sock,10.0.0.1:9")
    assert (reach(both), reach("host2:7")) == ("10.0.0.1:7", "host2:7")


def test_a_socket_in_another_users_directory_is_not_ours(monkeypatch):
    def is_socket(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_socket", is_socket)
    assert not is_our_socket(Path("/dev/shm/theirs/hub.sock"))
    assert at_hand("unix:/dev/shm/theirs/hub.sock,10.0.0.1:9") == "10.0.0.1:9"


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
        (["run", "--join-at", "0", "--server", "127.0.0.1:1", "SCRIPT"], "--join-at is for `nfdt serve`"),
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
