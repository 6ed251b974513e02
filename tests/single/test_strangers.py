"""What another user of the machine could do to a caller or a run, and a server to its callers."""

import os
import socket

import grpc
import pytest

from fdt import security
from fdt.blobs import LocalBlobs
from fdt.cli.run import prepared
from fdt.errors import UserError
from fdt.launch import spawn
from fdt.report.records import Jsonl
from fdt.rpc.training_pb2 import HelloReply
from fdt.rundir import RunDir
from fdt.service.blobs import RemoteBlobs, reachable_blobs
from fdt.service.transport import open_channel


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def as_stranger(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(security, "ROOT", 12346)  # the tests may run as root, which is trusted


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_token_is_sent_to_another_users_port(listening, monkeypatch, host):
    open_channel(f"{host}:{listening}").close()
    as_stranger(monkeypatch)
    with pytest.raises(UserError, match="another user"):
        open_channel(f"{host}:{listening}")


def test_no_token_is_sent_to_another_users_socket(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        open_channel(f"unix:{tmp_path}/s").close()
        as_stranger(monkeypatch)
        with pytest.raises(UserError, match="another user"):
            open_channel(f"unix:{tmp_path}/s")


def hello(directory, name):
    return HelloReply(blobs=str(directory), nonce=name)


def test_a_server_cannot_make_a_directory_of_the_callers_its_store(tmp_path):
    """Its files could be read, and removed as blobs."""
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "private" / "thesis").write_text("years")
    channel = grpc.insecure_channel("127.0.0.1:1")
    assert isinstance(reachable_blobs(hello(tmp_path / "private", "thesis"), channel, ()), RemoteBlobs)
    channel.close()
    store = LocalBlobs.create()
    try:
        ref = store.put(b"mine")
        assert isinstance(reachable_blobs(hello(store.directory, ref.id), channel, ()), LocalBlobs)
    finally:
        store.close()


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path):
    (tmp_path / "victim").write_text("kept")
    for name in ("worker-0.log", "records.jsonl"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="is a symbolic link"):
        spawn(["true"], os.environ, tmp_path / "worker-0.log")
    with pytest.raises(UserError, match="is a symbolic link"):
        Jsonl(tmp_path, 1)
    assert (tmp_path / "victim").read_text() == "kept"


def test_logs_are_not_written_where_every_user_may_put_links(tmp_path):
    tmp_path.chmod(0o1777)
    with pytest.raises(UserError, match="--log-dir must not be writable to all users"):
        prepared(tmp_path)


@pytest.mark.timeout(60)  # what opened a pipe to write would wait for a reader
def test_a_pipe_in_the_place_of_a_log_is_refused(tmp_path):
    for name in ("worker-0.log", "records.jsonl"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match="worker-0.log is not a regular file"):
        spawn(["true"], os.environ, tmp_path / "worker-0.log")
    with open(tmp_path / "records.jsonl", "r+b", buffering=0), pytest.raises(UserError, match="is not a regular file"):
        Jsonl(tmp_path, 1)  # nor is it written where another process reads it


def test_what_another_user_put_into_a_directory_of_all_users_is_not_used(tmp_path, monkeypatch):
    shared, own = tmp_path / "shared", tmp_path / "own"
    for directory in (shared, shared / "logs", shared / "users" / "logs", own):
        directory.mkdir(parents=True)
    shared.chmod(0o1777)
    (shared / "link").symlink_to(own)
    (own / "link").symlink_to(shared / "link")
    refused = (shared / "logs", shared / "link", shared / "link" / "logs", own / "link")
    for directory in refused:
        prepared(directory)
    as_stranger(monkeypatch)
    for directory in refused:
        with pytest.raises(UserError, match="another user put into a directory of all users.* of user 0"):
            prepared(directory)
    prepared(shared / "users" / "logs")
    with pytest.raises(UserError, match="--run-dir must not lead to what another user put"):
        RunDir.create(shared / "link", "hfdt", [], __file__, [])
    with pytest.raises(UserError, match="--resume must not lead to what another user put"):
        RunDir.open(shared / "link", "hfdt")
