"""Ranks of a replicated script on other hosts: their slots, their code, and the bootstrap listener that they call."""

import contextlib
import importlib
import json
import socket
import ssl
import struct
import sys
import threading
import time

import numpy as np
import pytest

from client_shim.replica import bootstrap, remote_code, remote_ranks
from client_shim.replica.bootstrap import _ALIVE, GREETING_BYTES, BootstrapListener, connect
from client_shim.replica.rank import RankConfig
from client_shim.replica.remote_ranks import _files, _task_message, ranks_by_host
from fdt.errors import UserError, WorkerError
from fdt.launch.hosts import Host
from fdt.launch.placement import run_identity
from fdt.process_group.peer import PeerGroup
from fdt.process_group.root import RootGroup as Meeting
from fdt.process_group.streams import INLINE_BYTES, ConnectionLost
from tests.namespaces import until

TOKEN = "right"
IDENTITY = run_identity()


# -- who sits where ---------------------------------------------------------------------------------------------------
def test_rank_0_has_the_first_slot_and_this_machine_comes_first(monkeypatch):
    monkeypatch.setattr("client_shim.replica.remote_ranks.is_here", lambda name: name == "here")
    a, b, here = Host("a", 2), Host("b", 1), Host("here", 2)
    assert ranks_by_host([a, here, b], 5) == [Host("here", 1), a, b]
    assert ranks_by_host([a, here, b], 3) == [Host("here", 1), Host("a", 1)]
    assert ranks_by_host([a, b], 3) == [Host("a", 1), b], "rank 0 is here, and a has a slot fewer"
    assert ranks_by_host([b], 1) == []


# -- its code ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def project(tmp_path):
    """A script with a module, a package, a folder of modules, and what is none of its."""
    files = {
        "train.py": "import helper\nfrom pack.deep import one\nimport loose.part\nimport json\n",
        "helper.py": "import late\nNAME = 'h\N{LATIN SMALL LETTER U WITH DIAERESIS}'\n",
        "late.py": "LATE = __file__\n",
        "pack/__init__.py": "from . import by_name_only\n",
        "pack/by_name_only.py": "",
        "pack/deep/__init__.py": "",
        "pack/deep/one.py": "def one():\n    return 1\n",
        "pack/data.csv": "1,2\n",
        "loose/part.py": "# coding: latin-1\nPART = 1\n",
        "not_imported.py": "raise SystemExit\n",
        "pack/venv/pyvenv.cfg": "",
        "pack/venv/lib.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


CARRIED = {
    *("train.py", "helper.py", "late.py", "loose/part.py", "pack/__init__.py"),
    *("pack/by_name_only.py", "pack/deep/__init__.py", "pack/deep/one.py"),
}


def test_the_script_and_what_it_imports_beside_it_is_carried(project):
    assert set(remote_code.collect(str(project / "train.py"))) == {str(project / name) for name in CARRIED}


def test_files_arrive_as_they_were(project):
    files = remote_code.collect(str(project / "train.py"))
    words, data = _task_message(RankConfig("", "", 1, 2, 0, {}, "/x", "x", []), files, "/")
    assert _files(json.loads(json.dumps(words))["files"], data) == files


def test_too_much_to_carry_is_said(project, monkeypatch):
    monkeypatch.setattr(remote_code, "MOST_BYTES", 10)
    with pytest.raises(UserError, match="the most that is sent"):
        remote_code.collect(str(project / "train.py"))


@pytest.fixture
def imports(monkeypatch):
    """Forgets what a test imports."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_code_is_imported_where_there_is_none_of_it(project, imports, tmp_path):
    files = {
        path.replace(str(project), "/nowhere/at/all"): text
        for path, text in remote_code.collect(str(project / "train.py")).items()
    }
    remote_code.unpack(files, "/nowhere/at/all", tmp_path / "scratch")
    helper, one = importlib.import_module("helper"), importlib.import_module("pack.deep.one")
    part = importlib.import_module("loose.part")
    assert (helper.NAME, helper.late.LATE, one.one(), part.PART) == ("h\xfc", "/nowhere/at/all/late.py", 1, 1)
    assert importlib.import_module("inspect").getsource(one.one) == "def one():\n    return 1\n"
    assert (tmp_path / "scratch/nowhere/at/all/pack/deep/one.py").exists()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_imported")


def test_what_a_host_has_already_is_not_brought_again(project, imports, tmp_path):
    remote_code.unpack(remote_code.collect(str(project / "train.py")), str(project), tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()


# -- the door ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def opened():
    made = BootstrapListener(2, IDENTITY, TOKEN, lambda rank: ({"rank": rank}, b"code"))
    yield made
    made.close()


def test_ranks_that_come_by_the_door_meet_as_others_do(opened, tmp_path):
    process_group = Meeting(tmp_path, 2, lambda: None, opened)
    sizes, answers = (1, INLINE_BYTES), []

    def peer():
        line, told = connect(f"127.0.0.1:{opened.port}", 1, TOKEN, IDENTITY)
        mine = PeerGroup(tmp_path / "elsewhere", 1, 2, line)
        answers.append(told)
        answers.extend(float(mine.all_reduce(np.full(n, 2.0, np.float32), "v").sum()) for n in sizes)
        answers.append(mine.push_pull(np.ones(INLINE_BYTES), {"n": 1})[0].sum())
        answers.append(mine.broadcast(None, "time"))
        mine.end({"steps": 3})
        mine.close()

    def serve(push):
        push.answer(2 * push.vector, {})

    process_group.serve_by(serve)
    thread = threading.Thread(target=peer)
    thread.start()
    assert [float(process_group.all_reduce(np.ones(n, np.float32), "v").sum()) for n in sizes] == [
        3.0 * n for n in sizes
    ]
    assert process_group.broadcast("now", "time") == "now"
    assert process_group.end(lambda: None) == [{"steps": 3}]
    thread.join()
    process_group.close()
    assert answers == [({"rank": 1}, b"code"), *(3.0 * n for n in sizes), 2.0 * INLINE_BYTES, "now"]
    assert [*tmp_path.glob("slot-*"), *tmp_path.glob("adding-*")] == [], "another host could not map them"


def test_a_rank_outlasts_a_pause_of_rank_0_longer_than_tcp_does(opened, tmp_path, monkeypatch):
    impatient = tuple((*option[:2], 3000) if option[1] == socket.TCP_USER_TIMEOUT else option for option in _ALIVE)
    monkeypatch.setattr(bootstrap, "_ALIVE", impatient)
    process_group, sums = Meeting(tmp_path, 2, lambda: None, opened), []
    large = np.ones(4 << 20)  # 32 MB, more than the connection holds

    def peer():
        line, _ = connect(f"127.0.0.1:{opened.port}", 1, TOKEN, IDENTITY)
        mine = PeerGroup(tmp_path / "elsewhere", 1, 2, line, alone=lambda: None)
        sums.extend(mine.all_reduce(np.ones(1), "first"))
        sums.append(mine.all_reduce(large, "second").sum())
        mine.close()

    thread = threading.Thread(target=peer)
    thread.start()
    process_group.all_reduce(np.ones(1), "first")
    time.sleep(5)  # as long as a plot takes
    assert process_group.all_reduce(large, "second").sum() == 2.0 * len(large)
    thread.join()
    process_group.close()
    assert sums == [2.0, 2.0 * len(large)]


def test_a_host_that_does_not_answer_has_not_closed_its_connection(opened):
    """TCP gives up a receiver that takes no bytes, as it gives up a host that is cut off."""
    line, _ = connect(f"127.0.0.1:{opened.port}", 1, TOKEN, IDENTITY)
    line.socket.setblocking(False)
    ((_, rank_0),) = until(opened.take_streams)
    with rank_0._lock:
        with pytest.raises(ssl.SSLWantWriteError):
            while True:
                line.socket.send(bytes(1 << 16))
        line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 300)  # not before the connection is full
        with pytest.raises(ConnectionLost, match="^its host does not answer$"):
            line.receive()
    line.socket.close()
    rank_0.socket.close()


def test_a_rank_that_goes_is_named(opened, tmp_path):
    process_group = Meeting(tmp_path, 2, lambda: None, opened)
    line, _ = connect(f"127.0.0.1:{opened.port}", 1, TOKEN, IDENTITY)
    line.socket.close()
    with pytest.raises(WorkerError, match="rank 1 was lost"):
        process_group.all_reduce(np.ones(1), "v")
    process_group.close()


def test_a_rank_without_rank_0_leaves_nothing_on_its_host(opened, tmp_path, monkeypatch):
    """Whoever notices first: the script's thread in an exchange, or the one that watches."""
    ended, cleaned = threading.Event(), threading.Event()
    monkeypatch.setattr(remote_ranks.os, "_exit", lambda code: ended.set())
    monkeypatch.setattr(remote_ranks, "forget", cleaned.set)
    line, _ = connect(f"127.0.0.1:{opened.port}", 1, TOKEN, IDENTITY)
    (tmp_path / "run" / "1").mkdir(parents=True)
    (tmp_path / "run" / "1" / "file").write_text("large")
    threading.Thread(target=remote_ranks._end_with, args=(line, tmp_path / "run" / "1")).start()
    mine = PeerGroup(tmp_path, 1, 2, line, lambda: ended.wait(60))
    deadline = time.monotonic() + 60
    while not (came := opened.take_streams()):
        assert time.monotonic() < deadline
    came[0][1].socket.close()
    with pytest.raises(ConnectionLost):
        mine.all_reduce(np.ones(1), "v")
    assert ended.is_set() and cleaned.is_set() and not (tmp_path / "run").exists()
    mine.close()


def test_a_folder_that_another_made_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o777)
    monkeypatch.setattr(remote_ranks, "SCRATCH", tmp_path)
    monkeypatch.setenv(remote_ranks.RANK_VARIABLES[0], "0")
    monkeypatch.setenv(remote_ranks.DIRECTORY_VARIABLE, "/dev/shm/theirs")
    with pytest.raises(UserError, match="must be writable to its user only"):
        remote_ranks.attach()
    monkeypatch.setenv(remote_ranks.DIRECTORY_VARIABLE, "/dev/shm/ours")
    assert remote_ranks._folder() == remote_ranks._folder() == tmp_path / "ours"


GREETINGS = {
    "another token": {"rank": 1, "token": "wrong"},
    "no token": {"rank": 1},
    "rank 0": {"rank": 0, "token": TOKEN},
    "no such rank": {"rank": 2, "token": TOKEN},
    "no rank": {"rank": None, "token": TOKEN},
    "no greeting": [],
    "a long one": {"rank": 1, "token": TOKEN, "more": "x" * GREETING_BYTES},
}


@pytest.mark.parametrize("name", GREETINGS)
def test_who_is_not_expected_is_turned_away(opened, name):
    with _tls(opened) as caller:
        text = json.dumps(GREETINGS[name]).encode()
        caller.sendall(struct.pack("<IQ", len(text), 0) + text)
        assert caller.recv(1) == b""
    assert opened.take_streams() == []
    connect(f"127.0.0.1:{opened.port}", 1, TOKEN, IDENTITY)[0].socket.close()
    deadline = time.monotonic() + 60
    while not (came := opened.take_streams()):
        assert time.monotonic() < deadline, "the rank that is expected comes in behind it"
    ((rank, line),) = came
    line.socket.close()
    assert rank == 1


def test_a_place_is_taken_once(opened):
    first, _ = connect(f"127.0.0.1:{opened.port}", 1, TOKEN, IDENTITY)
    with pytest.raises(UserError, match="rank 0 cannot be reached at"):
        connect(f"127.0.0.1:{opened.port}", 1, TOKEN, IDENTITY)
    first.socket.close()


def test_a_size_that_is_declared_takes_no_memory(opened, monkeypatch):
    monkeypatch.setattr(bootstrap, "HANDSHAKE_S", 3600.0)  # shown out by what was declared, not by the clock
    with _tls(opened) as caller:
        caller.sendall(struct.pack("<IQ", 2**32 - 1, 2**63))
        assert caller.recv(1) == b""


@pytest.mark.parametrize("identity", [None, run_identity()], ids=["no TLS", "another run's"])
def test_strangers_do_not_come_as_far_as_the_token(opened, identity):
    """Nothing that they say is read; the handshake has an end."""
    if identity is not None:
        with pytest.raises(UserError, match="rank 0 cannot be reached at"):
            connect(f"127.0.0.1:{opened.port}", 1, TOKEN, identity)
    else:
        with socket.create_connection(("127.0.0.1", opened.port)) as caller, contextlib.suppress(ConnectionError):
            caller.sendall(b'{"rank": 1, "token": "right"}' * 10)
            while caller.recv(1024):
                pass
    assert opened.take_streams() == []


def test_who_says_nothing_is_shown_out_and_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(bootstrap, "HANDSHAKE_S", 5.0)  # for the honest caller, too
    made = BootstrapListener(2, IDENTITY, TOKEN, lambda rank: ({}, b""))
    silent = [socket.create_connection(("127.0.0.1", made.port)) for _ in range(bootstrap.AT_ONCE)]
    connect(f"127.0.0.1:{made.port}", 1, TOKEN, IDENTITY)[0].socket.close()  # behind all of them
    assert all(caller.recv(1) == b"" for caller in silent)
    for caller in silent:
        caller.close()
    made.close()


def test_who_drips_is_shown_out_as_well(monkeypatch):
    monkeypatch.setattr(bootstrap, "HANDSHAKE_S", 4.0)  # for the handshake, too
    made = BootstrapListener(2, IDENTITY, TOKEN, lambda rank: ({}, b""))
    began = time.monotonic()
    with _tls(made) as caller, pytest.raises(OSError):
        caller.sendall(struct.pack("<IQ", GREETING_BYTES - 100, 0))
        while time.monotonic() < began + 60:
            caller.sendall(b" ")
            time.sleep(0.05)
    made.close()


def test_the_door_outlasts_a_failed_accept(monkeypatch):
    """As where there are no more descriptors for a while."""

    class Failing:
        def __init__(self, listening):
            self.listening, self.fails = listening, 2

        def accept(self):
            self.fails -= 1
            if self.fails >= 0:
                raise OSError(24, "Too many open files")
            return self.listening.accept()

        def __getattr__(self, name):
            return getattr(self.listening, name)

    create = socket.create_server
    monkeypatch.setattr(bootstrap.socket, "create_server", lambda *given: Failing(create(*given)))
    made = BootstrapListener(2, IDENTITY, TOKEN, lambda rank: ({}, b""))
    connect(f"127.0.0.1:{made.port}", 1, TOKEN, IDENTITY)[0].socket.close()
    made.close()


def _tls(opened):
    plain = socket.create_connection(("127.0.0.1", opened.port), 30)
    return IDENTITY.context(server=False).wrap_socket(plain, server_hostname=IDENTITY.name)
