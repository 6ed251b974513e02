"""Real gRPC over TLS: which callers are admitted, which are refused, and with which messages."""

import datetime
import queue
import select
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from click.testing import CliRunner

from fdt.blobs import LocalBlobs
from fdt.cli.hosts import make
from fdt.errors import UsageError, UserError
from fdt.rpc import training_pb2_grpc
from fdt.rpc.session_pb2 import Command, Event, Ready, Setup
from fdt.rpc.tensor_pb2 import Chunk
from fdt.security import auth
from fdt.security.auth import TlsIdentity, credentials
from fdt.security.authority import Authority
from fdt.service import transport
from fdt.service.blobs import BlobServicer, Quota
from fdt.service.client import TrainingClient
from fdt.service.server import MAX_WAITING, serve
from fdt.service.transport import open_channel
from hfdt.cli import main as hfdt

TOKEN = "right"


class OneWord:
    """An engine that says Ready to every job."""

    name, workers = "hfdt", 1

    def __init__(self, directory):
        self.run_dir, self.blobs = directory, LocalBlobs.create()

    def start(self): ...

    def train(self, commands):
        for command in commands:
            yield Event(job=command.job, ready=Ready())
            return


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """Directories of two authorities; the second knows the same names."""
    root = tmp_path_factory.mktemp("certs")
    for name in ("ours", "others"):
        make(root / name, ["10.1.2.3"], datetime.timedelta(days=1))
    return root


def identity(directory: Path, name: str, *, cert: bool = True, ca: Path | None = None) -> TlsIdentity:
    certificate, key = (directory / f"{name}{suffix}" if cert else None for suffix in (".pem", ".key"))
    found = TlsIdentity.read(certificate, key, (ca or directory) / "ca.pem")
    assert found is not None
    return found


@pytest.fixture
def engine(tmp_path):
    engine = OneWord(tmp_path)
    yield engine
    engine.blobs.close()


@pytest.fixture
def address(engine, certs):
    """Of a server on every interface, which wants TLS, a certificate of ours, and the token."""
    running = serve(engine, "0.0.0.0:0", TOKEN, identity(certs / "ours", "10.1.2.3"))
    yield running.address.replace("0.0.0.0", "127.0.0.1")
    running.stop()


def test_a_caller_with_the_right_certificate_and_token_trains(address, certs, engine, monkeypatch):
    monkeypatch.setattr(LocalBlobs, "holds", lambda self, name: False)  # as on another host: blobs by stream
    client = TrainingClient(address, TOKEN, identity(certs / "ours", "client"))
    data = bytes(range(256)) * 20_000
    ref = client.blobs.put(data)
    assert bytes(engine.blobs.get(ref)) == data == bytes(client.blobs.get(ref))
    client.close()


def test_a_wrong_token_is_refused_over_tls_too(address, certs):
    with pytest.raises(UserError, match="was started with another token"):
        TrainingClient(address, "wrong", identity(certs / "ours", "client"))


def test_no_certificate_is_refused(address, certs):
    with pytest.raises(UserError, match=f"at {address}"):
        TrainingClient(address, TOKEN, identity(certs / "ours", "client", cert=False))


def test_another_authoritys_certificate_is_refused(address, certs):
    with pytest.raises(UserError, match=f"at {address}"):
        TrainingClient(address, TOKEN, identity(certs / "others", "client", ca=certs / "ours"))


def test_a_server_of_another_authority_is_not_believed(address, certs):
    with pytest.raises(UserError, match="of the authority in --tls-ca"):
        TrainingClient(address, TOKEN, identity(certs / "ours", "client", ca=certs / "others"))


def test_a_certificate_for_another_name_is_said_to_be_that(engine, certs):
    """gRPC has its own words for it, which change: what the user reads names the address and --tls-ca."""
    ours = certs / "ours"
    running = serve(engine, "127.0.0.1:0", TOKEN, identity(ours, "client"))  # whose certificate is for no address
    with pytest.raises(UserError, match="has no certificate for that name of the authority in --tls-ca") as told:
        TrainingClient(running.address, TOKEN, identity(ours, "client"))
    assert running.address in str(told.value)
    running.stop()


@pytest.fixture(scope="module")
def at(certs):
    """Makes a certificate of one name, by the authority of ours unless another is given, valid for so long."""

    def make_identity(name: str, valid: datetime.timedelta, by: str = "ours", *, user: bool = False) -> TlsIdentity:
        ca = certs / by / "ca.pem"
        authority = Authority.load(ca.read_text(), ca.with_suffix(".key").read_text(), valid)
        pair = authority.sign_user(name) if user else authority.sign([name])
        return TlsIdentity(*pair, (certs / "ours" / "ca.pem").read_text())

    return make_identity


EXPIRED, VALID = datetime.timedelta(minutes=-1), datetime.timedelta(days=1)


def test_an_expired_certificate_is_refused_by_either_side(address, engine, certs, at):
    with pytest.raises(UserError, match=f"at {address}"):
        TrainingClient(address, TOKEN, at("client", EXPIRED))
    running = serve(engine, "127.0.0.1:0", TOKEN, at("127.0.0.1", EXPIRED))
    with pytest.raises(UserError, match="has no certificate"):
        TrainingClient(running.address, TOKEN, identity(certs / "ours", "client"))
    running.stop()


def test_another_authoritys_certificate_with_our_names_is_refused(address, engine, certs, at):
    """Its authority has the same name as ours, too."""
    with pytest.raises(UserError, match=f"at {address}"):
        TrainingClient(address, TOKEN, at("client", VALID, "others"))
    running = serve(engine, "127.0.0.1:0", TOKEN, at("127.0.0.1", VALID, "others"))
    with pytest.raises(UserError, match="has no certificate"):
        TrainingClient(running.address, TOKEN, identity(certs / "ours", "client"))
    running.stop()


def test_a_certificate_that_its_owner_signed_himself_is_refused(address, certs, at):
    """A host's certificate and key are no authority, although ours has signed them."""
    ours = at("10.1.2.3", VALID)
    forger = Authority.load(ours.certificate, ours.key, VALID)
    chain = TlsIdentity(*forger.sign_user("root"), ours.authority)
    with pytest.raises(UserError, match=f"at {address}"):
        TrainingClient(address, TOKEN, replace(chain, certificate=chain.certificate + ours.certificate))


@pytest.mark.parametrize("which", ["certificate", "authority"])
def test_a_file_that_is_not_valid_now_is_said_at_the_start(tmp_path, which):
    make(tmp_path / "c", ["n1"], EXPIRED)
    n1 = [tmp_path / "c" / name for name in ("n1.pem", "n1.key")] if which == "certificate" else [None, None]
    flag = "--tls-cert" if n1[0] else "--tls-ca"
    with pytest.raises(UsageError, match=rf"{flag} must be valid now; `certs` makes another. Received: .* UTC$"):
        TlsIdentity.read(*n1, tmp_path / "c" / "ca.pem")


class Tap:
    """Passes one connection on to `address`, and keeps what the caller has sent."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address, self.sent = (host, int(port)), b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.here = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._pass_on)
        self._thread.start()

    def _pass_on(self) -> None:
        with self._listening, self._listening.accept()[0] as caller, socket.create_connection(self.address) as server:
            both = {caller: server, server: caller}
            while True:
                for one in select.select(list(both), [], [])[0]:
                    try:
                        data = one.recv(1 << 16)
                        both[one].sendall(data)
                    except OSError:
                        data = b""
                    if not data:
                        return
                    self.sent += data if one is caller else b""

    def replay(self) -> bytes:
        """Send the same bytes again, at once; what is answered until the server ends the connection."""
        self._thread.join()
        with socket.create_connection(self.address, 60) as again:
            again.sendall(self.sent)
            return b"".join(iter(lambda: _received(again), b""))


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except ConnectionError:
        return b""


def test_what_was_captured_of_a_callers_tls_is_worth_nothing_again(engine, certs, monkeypatch):
    """Every connection has keys of its own: the server ends it before it has read a call."""
    said = []
    monkeypatch.setattr(OneWord, "train", lambda self, commands: said.append(1) or iter(()))
    running = serve(engine, "127.0.0.1:0", TOKEN, identity(certs / "ours", "10.1.2.3"))
    tap = Tap(running.address)
    client = TrainingClient(tap.here, TOKEN, identity(certs / "ours", "client"))
    conversation = client.train()
    conversation.send(Command(job="1", setup=Setup()))
    list(conversation.events())
    conversation.close()
    client.close()
    assert len(said) == 1 and len(tap.sent) > 1000
    calls = []
    monkeypatch.setattr(auth.RequireToken, "intercept_service", lambda *_: calls.append(1))
    answered = tap.replay()
    assert (len(said), calls) == (1, []) and TOKEN.encode() not in tap.sent + answered
    running.stop()


def test_no_tls_is_refused(address):
    with pytest.raises(UserError, match="if the server uses TLS, and only then"):
        TrainingClient(address, TOKEN)


def test_a_server_without_an_authority_asks_for_the_token_alone(engine, certs):
    only_server = TlsIdentity.read(certs / "ours" / "10.1.2.3.pem", certs / "ours" / "10.1.2.3.key", None)
    running = serve(engine, "127.0.0.1:0", TOKEN, only_server)
    TrainingClient(running.address, TOKEN, identity(certs / "ours", "client", cert=False)).close()
    with pytest.raises(UserError, match="was started with another token"):
        TrainingClient(running.address, "wrong", identity(certs / "ours", "client", cert=False))
    running.stop()


def test_beyond_loopback_without_tls_nothing_listens_and_nothing_calls(engine):
    with pytest.raises(UsageError, match="needs TLS: give --tls-cert, --tls-key and --tls-ca"):
        serve(engine, "0.0.0.0:0", TOKEN)
    with pytest.raises(UsageError, match="needs TLS"):
        open_channel("10.1.2.3:80")


def test_a_stranger_who_says_nothing_is_shown_out(engine, certs, monkeypatch):
    soon = [(name, 500 if "handshake_timeout" in name else value) for name, value in transport.OPTIONS]
    monkeypatch.setattr(transport, "OPTIONS", tuple(soon))
    running = serve(engine, "127.0.0.1:0", TOKEN, identity(certs / "ours", "10.1.2.3"))
    with socket.create_connection(("127.0.0.1", int(running.address.rpartition(":")[2])), 60) as caller:
        assert caller.recv(1) == b""
    running.stop()


@pytest.mark.parametrize("token", ["", "righ", "right ", "right"])
def test_tokens_are_compared_in_constant_time(monkeypatch, token):
    compared = []
    monkeypatch.setattr(auth.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    details = SimpleNamespace(invocation_metadata=credentials(token))
    called = auth.RequireToken(TOKEN).intercept_service(lambda _: "let in", details)
    assert (called == "let in") is (token == TOKEN)
    assert compared == [(f"Bearer {token}".encode(), b"Bearer right")], "and in no other way"


def test_certs_are_private_and_written_once(tmp_path):
    made = CliRunner().invoke(hfdt, ["certs", str(tmp_path / "c"), "node1", "10.0.0.7"])
    assert made.exit_code == 0, made.output
    assert "--server node1:PORT" in made.output
    names = {file.name for file in (tmp_path / "c").iterdir()}
    assert names == {f"{stem}.{end}" for stem in ("ca", "client", "node1", "10.0.0.7") for end in ("pem", "key")}
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "c").glob("*.key")}
    assert modes == {0o600} and stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    again = CliRunner().invoke(hfdt, ["certs", str(tmp_path / "c")])
    assert again.exit_code == 2 and "a directory without certificates. Received:" in again.output


def test_what_is_no_pair_or_no_pem_is_said(tmp_path, certs):
    key = certs / "ours" / "client.key"
    with pytest.raises(UsageError, match="need each other: give --tls-cert too"):
        TlsIdentity.read(None, key, None)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UsageError, match="--tls-ca must be a file in PEM format"):
        TlsIdentity.read(None, None, tmp_path / "text")
    with pytest.raises(UsageError, match="--tls-cert cannot be read"):
        TlsIdentity.read(tmp_path / "nowhere", key, None)
    assert "PRIVATE" not in repr(identity(certs / "ours", "client"))


# -- limits -----------------------------------------------------------------------------------------------------------
def test_a_caller_may_keep_so_many_bytes_and_no_more(engine):
    quota = Quota(engine.blobs, limit=100)
    kept = quota.put("ipv4:10.0.0.1", [b"x" * 60])
    with pytest.raises(UserError, match="stores at most 100 bytes"):
        quota.put("ipv4:10.0.0.1", [b"x" * 30, b"x" * 30])
    quota.put("ipv4:10.0.0.2", [b"x" * 60])
    engine.blobs.drop(kept)
    quota.put("ipv4:10.0.0.1", [b"x" * 60])
    assert sum(file.stat().st_size for file in engine.blobs.directory.iterdir()) == 120, (
        "nothing is left of the refused"
    )


PUTTING = """
import sys, time
from fdt.service.blobs import RemoteBlobs
from fdt.service.client import TrainingClient
client = TrainingClient(sys.argv[1], "right")
if sys.argv[2] == "remote":
    client.blobs = RemoteBlobs(client._channel, client._metadata, client.blobs._holder)
print(*(client.blobs.put(b"x" * size).id for size in (1, 5 << 20)), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("where", ["here", "remote"])
def test_the_blobs_of_a_killed_client_go_and_those_of_others_stay(engine, tmp_path, where):
    running = serve(engine, f"unix:{tmp_path}/s.sock", "right")
    try:
        other = TrainingClient(running.address, "right")
        kept = other.blobs.put(b"kept")
        argv = [sys.executable, "-c", PUTTING, running.address, where]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as putting:
            names = putting.stdout.readline().split()
            held = [engine.blobs.holds(name) for name in names]
            putting.kill()
        assert held == [True, True]
        gone(engine.blobs, names)
        assert bytes(other.blobs.get(kept)) == b"kept"
        other.close()
        gone(engine.blobs, [kept.id])
    finally:
        running.stop()


def gone(blobs, names):
    deadline = time.monotonic() + 60
    while any(map(blobs.holds, names)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_blobs_of_one_holder_go_on_disk_too_and_without_a_store_nothing_happens(tmp_path):
    store = LocalBlobs(tmp_path / "store", "0a")
    store.directory.mkdir()
    mine, other = store.put(b"x"), LocalBlobs(store.directory, "0b").put(b"x")
    (store._disk() / f"{mine.id}0").write_bytes(b"killed before the link was made")
    store.drop_of("0a")
    assert not store.holds(mine.id) and store.holds(other.id) and not list(store._disk().iterdir())
    store._disk().rmdir()
    shutil.rmtree(store.directory)
    store.drop_of("0a")


def test_a_server_that_stands_still_behind_its_hello_is_said_in_time(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("fdt.service.client.CONNECT_TIMEOUT_S", 1)
    over = threading.Event()
    monkeypatch.setattr(BlobServicer, "Hold", lambda self, request, context: iter(over.wait, True))
    running = serve(engine, f"unix:{tmp_path}/s.sock", TOKEN)
    try:
        with pytest.raises(UserError, match="does not answer"):
            TrainingClient(running.address, TOKEN)
    finally:
        over.set()
        running.stop()


def test_strangers_write_nothing_and_cost_nothing(engine, tmp_path):
    """A large message of somebody without the token is not even read."""
    running = serve(engine, f"unix:{tmp_path}/s.sock", TOKEN)
    before = {file.name for file in engine.blobs.directory.iterdir()}
    with open_channel(running.address) as channel:
        stub = training_pb2_grpc.BlobServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Put(iter([Chunk(data=bytes(40 << 20))] * 3), metadata=credentials("wrong"), timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert {file.name for file in engine.blobs.directory.iterdir()} == before
    running.stop()


def test_a_message_that_is_too_large_is_refused_and_the_next_is_not(engine, tmp_path):
    running = serve(engine, f"unix:{tmp_path}/s.sock", TOKEN)
    with open_channel(running.address) as channel:
        stub = training_pb2_grpc.BlobServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Put(iter([Chunk(data=bytes(65 << 20))]), metadata=credentials(TOKEN), timeout=60)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.Put(iter([Chunk(data=b"small")]), metadata=credentials(TOKEN), timeout=60).nbytes == 5
    running.stop()


def test_a_job_that_says_nothing_keeps_nobody_waiting(engine, tmp_path):
    running = serve(engine, f"unix:{tmp_path}/s.sock", TOKEN)
    silent, busy = (TrainingClient(running.address, TOKEN) for _ in range(2))
    waiting = [silent.train() for _ in range(3)]
    conversation = busy.train()
    conversation.send(Command(job="1", setup=Setup()))
    assert next(conversation.events()).job == "1"
    for one in (*waiting, conversation):
        one.cancel()
    running.stop()


def test_so_many_jobs_may_wait_and_no_more(engine, tmp_path):
    running = serve(engine, f"unix:{tmp_path}/s.sock", TOKEN)
    client = TrainingClient(running.address, TOKEN)
    refused: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen(conversation):
        try:
            list(conversation.events())
        except UserError as error:
            refused.put(str(error))

    conversations = [client.train() for _ in range(MAX_WAITING + 2)]
    threads = [threading.Thread(target=listen, args=[conversation]) for conversation in conversations]
    for thread in threads:
        thread.start()
    assert f"the engine trains a job, and {MAX_WAITING} others wait" in refused.get(timeout=60)
    for conversation, thread in zip(conversations, threads, strict=True):
        conversation.cancel()
        thread.join()
    assert refused.empty()
    running.stop()


def test_so_many_streams_are_served_and_no_more(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "MAX_STREAMS", 4)
    running = serve(engine, f"unix:{tmp_path}/s.sock", TOKEN)
    client = TrainingClient(running.address, TOKEN)
    silent = [client.train() for _ in range(4)]
    with pytest.raises(UserError, match="takes no further caller now"):
        while True:  # until all four are there
            TrainingClient(running.address, TOKEN).close()
    for one in silent:
        one.cancel()
    client.close()
    running.stop()


def test_files_that_do_not_belong_together_are_named(certs, tmp_path):
    broken = tmp_path / "ca.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    ours, others = certs / "ours", certs / "others"
    with pytest.raises(UsageError, match="--tls-key must be the key of --tls-cert"):
        TlsIdentity.read(ours / "client.pem", others / "client.key", ours / "ca.pem")
    with pytest.raises(UsageError, match="--tls-ca must hold an authority's certificate in PEM format"):
        TlsIdentity.read(ours / "client.pem", ours / "client.key", broken)


@pytest.mark.parametrize("hosts", [["hôst"], [""], ["."], ["a/b"], ["n1", "n1"], ["ca"]])
def test_certs_of_hosts_that_are_none_begins_nothing(tmp_path, hosts):
    done = CliRunner().invoke(hfdt, ["certs", str(tmp_path / "made"), *hosts])
    assert done.exit_code != 0 and isinstance(done.exception, (SystemExit, UsageError)), done.exception
    assert not (tmp_path / "made").exists()
