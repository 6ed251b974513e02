"""`run` and `serve` around a stub of an engine: order of actions, directories, tokens, signals."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fdt.blobs import LocalBlobs
from fdt.cli import RunRequest
from fdt.cli.detach import attached_runs
from fdt.cli.run import run
from fdt.ending import ended_by_signals
from fdt.errors import UsageError, UserError, WorkerError
from fdt.rpc.session_pb2 import EpochEnd, Event, Failed
from frontends.pool import serve as pool_serve
from frontends.pool.serve import address_of, serve


class Engine:
    """Knows whether it runs."""

    name, workers = "hfdt", 3

    def __init__(self, run_dir, slots=None):
        self.run_dir, self.calls = run_dir, []
        self.blobs, self.owned = (slots.blobs, False) if slots else (LocalBlobs.create(), True)

    def start(self):
        self.calls.append("start")

    def train(self, commands):
        return iter(())

    def stop(self):
        self.calls.append("stop")
        if self.owned:
            self.blobs.close()


@pytest.fixture(autouse=True)
def signals():
    """Signals raise, as within the command (fdt/cli/program.py)."""
    with ended_by_signals():
        yield


@pytest.fixture
def engines():
    return []


@pytest.fixture
def go(engines):
    """Run a function in the script's place; its engine is in `engines`."""

    def make(run_dir):
        engines.append(Engine(run_dir))
        return engines[-1]

    def call(script, /, **request):
        return run(RunRequest("hfdt", **request), make, script)

    return call


def test_the_engine_runs_while_the_script_does_and_its_directories_go(go, engines):
    def script(client, reporters):
        (engine,) = engines
        assert engine.calls == ["start"]
        assert (client.hello.engine, client.hello.workers) == ("hfdt", 3)
        assert engine.run_dir.stat().st_mode & 0o77 == 0
        return 7

    assert go(script) == 7
    assert engines[0].calls == ["start", "stop"]
    assert not engines[0].run_dir.exists()
    assert not engines[0].blobs.directory.exists()


def test_without_early_there_is_an_engine_once_it_is_asked_for(go, engines):
    def script(client, reporters):
        assert not engines
        assert (client.hello.workers, client.hello.engine) == (3, "hfdt")
        assert [engine.calls for engine in engines] == [["start"]]
        return 0

    assert go(script, early=False) == 0
    assert engines[0].calls == ["start", "stop"]


def test_without_early_a_script_that_asks_for_no_engine_has_none(go, engines):
    assert go(lambda client, reporters: 7, early=False) == 7
    assert engines == []


@pytest.mark.parametrize(
    ("code", "error"),
    [(130, KeyboardInterrupt), (UserError("no"), UserError), (SystemExit(143), SystemExit), (1, None)],
)
def test_the_engine_is_stopped_however_the_script_ends(go, engines, capsys, code, error):
    def script(client, reporters):
        reporters.event(Event(epoch_end=EpochEnd(steps=1, samples=1)))
        if isinstance(code, BaseException):
            raise code
        return code

    with pytest.raises(error) if error else contextlib.nullcontext():
        assert go(script) == code
    assert engines[0].calls == ["start", "stop"]
    assert capsys.readouterr().err == ""  # no summary: an error is the last that is printed


@pytest.mark.parametrize("raised", [True, False])
def test_the_logs_that_a_failure_names_are_kept(go, engines, raised):
    def script(client, reporters):
        (engines[0].run_dir / "worker-1.log").write_text("what went wrong")
        reporters.event(Event(failed=Failed(message="worker 1 was lost")))
        if raised:
            raise WorkerError("worker 1 was lost")
        return 1

    if raised:
        with pytest.raises(WorkerError):
            go(script)
    else:
        assert go(script) == 1
    assert (engines[0].run_dir / "worker-1.log").read_text() == "what went wrong"
    for file in engines[0].run_dir.iterdir():
        file.unlink()
    engines[0].run_dir.rmdir()


@pytest.mark.parametrize(("early", "workers"), [(True, 3), (False, 0)])
def test_a_run_that_trained_nothing_says_how_many_workers_there_were(go, tmp_path, capsys, early, workers):
    assert go(lambda client, reporters: 0, early=early, log_dir=tmp_path, verbose=True) == 0
    last = json.loads((tmp_path / "records.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["workers"]) == ("summary", workers)
    whose = "3 workers; their" if early else "the workers'"
    assert capsys.readouterr().err == f"hfdt: {whose} logs are in {tmp_path}\n"


def test_log_dir_holds_records_and_members_logs_of_this_run_only(go, engines, tmp_path):
    logs = tmp_path / "a" / "b"
    logs.mkdir(parents=True)
    (logs / "worker-5.log").write_text("an earlier run's")
    for name in ("notes.txt", "server-production.log"):
        (logs / name).write_text("the user's")

    def script(client, reporters):
        assert engines[0].run_dir == logs.resolve()
        return 0

    assert go(script, log_dir=logs, quiet=True) == 0
    assert sorted(file.name for file in logs.iterdir()) == ["notes.txt", "records.jsonl", "server-production.log"]


@pytest.mark.parametrize(("error", "quiet"), [(None, False), (UserError("no"), True)])
def test_a_run_with_a_log_dir_records_its_end_and_then_writes_its_report(go, tmp_path, monkeypatch, error, quiet):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def script(client, reporters):
        (run,) = attached_runs()
        assert run.name == f"train-{os.getpid()}" and run.read("logs")["directory"] == str(tmp_path)
        if error:
            raise error
        return 0

    written = []

    def write_report(engine, directory, quiet):
        records = [json.loads(line) for line in (directory / "records.jsonl").read_text().splitlines()]
        written.append((engine, directory, quiet, records))

    with pytest.raises(UserError) if error else contextlib.nullcontext():
        go(script, log_dir=tmp_path, script="train.py", write_report=write_report)
    ((engine, directory, said, records),) = written
    assert (engine, directory, said) == ("hfdt", tmp_path, quiet)
    assert [record["kind"] for record in records] == ["run", "end", "summary"]
    assert (records[1]["code"], records[1]["error"]) == ((1, "no") if error else (0, ""))
    assert attached_runs() == []


def test_a_log_dir_that_cannot_be_is_one_line(go, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--log-dir cannot be written"):
        go(lambda client, reporters: 0, log_dir=tmp_path / "file" / "logs")


@pytest.mark.parametrize("directory", ["file/events", "/proc"])  # which exists, and cannot be written by root either
def test_event_files_that_cannot_be_are_one_line_before_the_script_runs(go, tmp_path, directory):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--tensorboard cannot be written"):
        go(lambda client, reporters: pytest.fail("the script ran"), tensorboard=tmp_path / directory)


def test_sigterm_ends_the_run_in_order(go, engines):
    def script(client, reporters):
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    with pytest.raises(SystemExit) as ended:
        go(script)
    assert ended.value.code == 143
    assert engines[0].calls == ["start", "stop"]


# -- a server ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def server(tmp_path):
    """A server on a Unix socket, its token in a file."""
    from fdt.service.server import serve as start

    engine = Engine(tmp_path)
    running = start(engine, f"unix:{tmp_path}/s.sock", "secret")
    (tmp_path / "token").write_text("secret\n")
    yield running.address, tmp_path / "token"
    running.stop()
    engine.stop()


def test_a_server_is_used_by_one_client_after_another_and_not_stopped(go, engines, server, monkeypatch):
    address, token = server
    assert go(lambda client, reporters: client.hello.workers, server=address, token_file=token) == 3
    monkeypatch.setenv("FDT_TOKEN", "secret")
    assert go(lambda client, reporters: "FDT_TOKEN" in os.environ, server=address, workers=3) == 0
    assert engines == []


def test_what_may_be_wrong_with_a_server(go, server, monkeypatch, tmp_path):
    address, token = server
    monkeypatch.delenv("FDT_TOKEN", raising=False)
    nothing = lambda client, reporters: 0  # noqa: E731
    with pytest.raises(UsageError, match="--server needs a token"):
        go(nothing, server=address)
    with pytest.raises(UsageError, match="--token-file cannot be read"):
        go(nothing, server=address, token_file=tmp_path / "nowhere")
    with pytest.raises(UsageError, match="gives at most 3 workers to a job of yours. Received: -np 4; leave -np out"):
        go(nothing, server=address, token_file=token, workers=4)
    with pytest.raises(UsageError, match="is hfdt's; use `hfdt run`"):
        run(RunRequest("nfdt", server=address, token_file=token), Engine, nothing)
    monkeypatch.setenv("FDT_TOKEN", "another")
    with pytest.raises(UserError, match="was started with another token"):
        go(nothing, server=address)
    monkeypatch.setenv("FDT_TOKEN", "two\nlines")
    with pytest.raises(UsageError, match="a token must be one line"):
        go(nothing, server=address)


@pytest.mark.parametrize("sent", ["of mine", "of\nmine", "of-m\N{LATIN SMALL LETTER I WITH ACUTE}ne"])
def test_no_token_is_in_an_error(go, server, monkeypatch, sent):
    address, token = server
    monkeypatch.setenv("FDT_TOKEN", sent)
    with pytest.raises(UserError) as caught:
        go(lambda client, reporters: 0, server=address)
    for error in (caught.value, caught.value.__cause__, caught.value.__context__):
        assert sent not in str(error) and token.read_text().strip() not in str(error)


def serving(**given):
    """The options of `serve`."""
    tls = dict.fromkeys(("tls_cert", "tls_key", "tls_ca"))
    return {"host": "127.0.0.1", "port": 0, "socket": None, "log_dir": None, "quota": None, "admin": None} | tls | given


def test_a_socket_that_cannot_be_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="a socket needs a directory.*nowhere"):
        serve("hfdt", 3, Engine, serving(socket=f"{tmp_path}/nowhere/x.sock", log_dir=tmp_path))


@pytest.mark.parametrize("flag", ["quota", "admin"])
def test_users_without_certificates_are_not_told_apart(flag):
    with pytest.raises(UsageError, match=f"--{flag} needs users with certificates"):
        serve("hfdt", 3, Engine, serving(**{flag: "2"}))


def test_serve_says_where_it_is_and_ends_by_sigterm_with_nothing_left(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("FDT_TOKEN", raising=False)
    engines, announce = [], pool_serve._announce

    class Noted(Engine):
        def start(self):
            super().start()
            engines.append(self)

    def announced(*given):
        announce(*given)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()  # where it waits for its end

    monkeypatch.setattr(pool_serve, "_announce", announced)
    assert serve("hfdt", 3, Noted, serving()) == 0
    out, err = capsys.readouterr()
    first, second, third = out.splitlines()
    assert first.startswith("hfdt: 3 workers at 127.0.0.1:")
    token = second.split()[3].rstrip(",")
    assert third.endswith(f"--token-file {token} script.py")
    assert err == "hfdt: stopped\n"
    assert engines[0].calls == ["start", "stop"]
    assert not Path(token).exists()


def test_a_port_in_use_is_said_before_any_worker_starts(server, tmp_path):
    import socket

    engines = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match="in use"):
            serve("hfdt", 3, lambda *given: engines.append(given), serving(port=port, log_dir=tmp_path))
    assert not engines


def test_a_socket_at_which_a_server_listens_stays_its_own_and_a_dead_servers_is_replaced(tmp_path):
    import socket

    from fdt.service.transport import bind, new_server, stop_server

    path, second = str(tmp_path / "pool"), new_server("token")
    with socket.socket(socket.AF_UNIX) as first:
        first.bind(path)
        first.listen()
        with pytest.raises(UserError, match=f"listens at this address already. Received: unix:{path}"):
            bind(second, f"unix:{path}")
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(path)
    assert bind(second, f"unix:{path}") == f"unix:{path}"
    stop_server(second)


@pytest.mark.parametrize(
    ("given", "address"),
    [(("127.0.0.1", 0, None), "127.0.0.1:0"), (("::1", 5, None), "[::1]:5"), (("", 0, "/tmp/x"), "unix:/tmp/x")],
)
def test_where_to_listen(given, address):
    assert address_of(*given) == address


# -- the real thing, short of training --------------------------------------------------------------------------------
@pytest.mark.parametrize("engine", ["hfdt", "nfdt"])
def test_a_script_that_never_trains_runs_as_it_is(engine, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "heavy = ('tensorflow', 'keras', 'grpc', 'numpy')\n"  # a script pays for what it imports, no more
        "print(sys.argv[1:], __name__, [name for name in heavy if name in sys.modules])\n"
        "sys.exit(5 if '--five' in sys.argv else 0)\n"
    )
    command = [sys.executable, "-m", engine, "run", "-np", "1", str(script), "a b"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stdout) == (0, "['a b'] __main__ []\n"), ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"{engine}: the script called no fit")
    ended = subprocess.run([*command, "--five"], capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stderr) == (5, "")
