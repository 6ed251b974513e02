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
