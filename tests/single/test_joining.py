"""`nfdt join` and --join-at without workers: who is let in, what is said to the others, what is left behind."""

import re
import threading

import click.testing
import pytest

from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.rpc.session_pb2 import Attached, Event
from fdt.service.auth import credentials
from fdt.service.guests import MOST, Came, Left
from fdt.service.hub import Arrival, Hub
from fdt.service.member import reach
from fdt.service.transport import open_channel
from nfdt import cli
from nfdt.joining import guest
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


def test_a_server_that_does_not_listen_yet_is_called_where_it_will(hub, monkeypatch):
    both = "unix:/not/there/yet.sock,0.0.0.0:7"
    monkeypatch.setenv("FDT_ENGINE", f"{hub.address},10.0.0.1:9")
    assert reach(both) == "unix:/not/there/yet.sock"
    monkeypatch.setenv("FDT_ENGINE", "unix:/of/another/host.sock,10.0.0.1:9")
    assert (reach(both), reach("host2:7")) == ("10.0.0.1:7", "host2:7")


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
