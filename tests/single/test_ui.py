"""The live page: who may ask its server, what it tells of runs and their processes, and Chromium on it."""

import contextlib
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from click.testing import CliRunner

from fdt import runs
from fdt.cli import RunRequest
from fdt.cli.detach import attached_home, attached_runs, registered
from fdt.runs import ProcessIdentity, space
from fdt.service.member import ENGINE_VARIABLE
from frontends.ui import live, server
from frontends.ui.server import UiServer
from hfdt.cli import main
from tests.browser import chromium
from tests.pages import page_data

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
WITHIN_S = 30.0


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def process():
    """Start a process; all are ended with the test."""
    started = []

    def start(**environment):
        started.append(subprocess.Popen(SLEEP, env={**os.environ, **environment}))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


@pytest.fixture
def ui():
    with UiServer(0) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(ui, path, method="GET", host=None, **headers):
    """Return the answer's status, and its body: JSON, or a page."""
    connection = http.client.HTTPConnection("127.0.0.1", ui.server_port, timeout=WITHIN_S)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", f"127.0.0.1:{ui.server_port}" if host is None else host)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read().decode()
        return answer.status, json.loads(body) if answer.headers["Content-Type"] == "application/json" else body
    finally:
        connection.close()


def bearer(ui):
    return {"Authorization": f"Bearer {ui.token}"}


def seen(ui, *names):
    query = "&".join(f"run={quote(name)}" for name in names)
    status, found = ask(ui, f"/state?{query}", **bearer(ui))
    assert status == 200
    return found


def memory_of_worker(ui, run):
    (worker,) = seen(ui, run.name)["runs"][0]["workers"]
    return worker["memory_bytes"]


def until(condition):
    deadline = time.monotonic() + WITHIN_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def detached(client, logs, *pids, name="train.py"):
    """Register a detached run of this client; its records name workers of these numbers."""
    run = runs.create("nfdt", name, ["python", "-m", "nfdt", "run", "--detach", name])
    me = ProcessIdentity.of(client.pid)
    run.write("processes", {"client": asdict(me)})
    run.write("logs", {"directory": str(logs)})
    run.write("progress", {"begun": True, "at": "1/2", "line": "Epoch 1/2  <b>5/10</b>"})
    logs.mkdir(exist_ok=True)
    now = time.time()
    records = [{"kind": "run", "engine": "nfdt", "process": asdict(me), "space": space()}]
    records.append(
        {"kind": "job", "job": "j", "engine": "nfdt", "workers": len(pids), "steps_per_epoch": 10, "epochs": 2}
    )
    for rank, pid in enumerate(pids):
        log = logs / f"worker-{rank}.log"
        log.write_text(f"first\nworker {rank} says <i>hello</i>\n\n")
        records.append(
            {"kind": "attached", "rank": rank, "role": "worker", "pid": pid, "host": "here", "log": str(log)}
        )
        records.append(progress(rank, 0, 3))
    append(logs, *records, now=now)
    return run


def progress(rank, epoch, step, **logs):
    logs = logs or {"loss": 1.0 / (1 + step)}
    return {
        "kind": "progress", "job": "j", "rank": rank, "epoch": epoch, "step": step, "samples": 64 * step, "logs": logs,
        "memory_bytes": 5, "staleness": 1.5,
    }  # fmt: skip


def append(logs, *records, now=None):
    with open(logs / "records.jsonl", "a") as file:
        file.writelines(json.dumps({"time": now or time.time(), **record}) + "\n" for record in records)


# -- the server --
@pytest.mark.parametrize("path", ["/", "/state", "/stop?run=a", "/etc/passwd"])
@pytest.mark.parametrize("token", ["", "wrong", "\xe9", "Bearer"])
def test_who_has_no_token_gets_nothing(ui, path, token):
    for method in ("GET", "POST"):
        status, said = ask(ui, path, method, Authorization=f"Bearer {token}")
        assert status == 403 and "token" in said["error"]
    status, _ = ask(ui, f"/?token={quote(token)}")
    assert status == 403
    assert ask(ui, f"/state?token={ui.token}")[0] == 403, "the page alone takes the token from its address"


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:PORT", "127.0.0.1", "127.0.0.1:1"])
def test_a_name_that_resolves_to_loopback_is_refused(ui, host):
    status, said = ask(ui, f"/?token={ui.token}", host=host.replace("PORT", str(ui.server_port)), **bearer(ui))
    assert status == 403 and "Host" in said["error"]


def test_a_page_of_another_origin_is_refused(ui):
    own = f"http://127.0.0.1:{ui.server_port}"
    assert ask(ui, "/state", Origin="http://evil.example", **bearer(ui))[0] == 403
    assert ask(ui, "/stop?run=a", "POST", Origin="null", **bearer(ui))[0] == 403
    assert ask(ui, "/state", Origin=own, **bearer(ui))[0] == 200


def hostile(seed, port):
    """A request that no browser sends: noise, an honest one that is cut or changed, a declared size that is a bomb."""
    rng = random.Random(seed)
    bombs = (
        b"Content-Length: 1%s" % (b"0" * 15),
        b"Content-Length: -1",
        b"Transfer-Encoding: chunked",
        b"X: " + bytes(70_000),
    )
    more = rng.choice((*bombs, b"X: y\r\n" * 200, b"Expect: 100-continue", b"Host: evil.example", b"\0", b""))
    path = rng.choice((b"/", b"//[", b"/stop?run=a", b"/state?" + b"run=a&" * 9000, b"/?" + b"x" * 70_000, b"/%", b"*"))
    verb = rng.choice((b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"TRACE"))
    version = rng.choice((b" HTTP/1.1", b" HTTP/9.9", b" HTTP/1.x", b""))
    honest = b"%s %s%s\r\nHost: 127.0.0.1:%d\r\n%s\r\n\r\n" % (verb, path, version, port, more)
    changed = bytearray(honest)
    for _ in range(rng.randrange(4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return rng.choice((rng.randbytes(rng.randrange(1, 300)), honest, bytes(changed), honest[: rng.randrange(1, 200)]))


def test_noise_and_bombs_without_the_token_get_nothing(ui):
    """200 seeded cases; each connection ends, and the page answers after them."""
    said = set()
    for seed in range(200):
        with socket.create_connection(("127.0.0.1", ui.server_port), WITHIN_S) as caller, contextlib.suppress(OSError):
            caller.sendall(hostile(seed, ui.server_port))
            caller.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda caller=caller: caller.recv(1 << 16), b""))
            assert ui.token.encode() not in answer
            said |= set(re.findall(rb"^HTTP/1.[01] (\d+)", answer))
    assert said <= {b"100", b"400", b"403", b"414", b"431", b"501", b"505"} and b"403" in said
    assert ask(ui, "/state", **bearer(ui))[0] == 200


def test_a_stop_that_is_sent_again_stops_nothing_more(ui, process, tmp_path, monkeypatch):
    """A request holds the token: who has captured one can also make others, for what the user himself may."""
    stopped = []
    monkeypatch.setattr(live, "stop", stopped.append)
    run = detached(process(), tmp_path / "logs")
    statuses = [ask(ui, f"/stop?run={quote(run.name)}", "POST", **bearer(ui))[0] for _ in range(3)]
    assert statuses == [202, 409, 409]
    until(lambda: len(stopped) == 1)


def test_the_page_and_other_addresses(ui):
    status, page = ask(ui, f"/?token={ui.token}", host=f"localhost:{ui.server_port}")
    assert status == 200 and page_data(page) == {"title": "Runs", "live": True, "runs": []}
    assert ui.token not in page and "connect-src 'self'" in page
    assert ask(ui, "/other", **bearer(ui))[0] == 404
    assert ask(ui, "/stop?run=none", **bearer(ui))[0] == 404, "stop is no GET"
    assert ask(ui, "/stop?run=none", "POST", **bearer(ui))[0] == 409
    assert ask(ui, "/state", "POST", **bearer(ui))[0] == 404
    assert ask(ui, "/state", "DELETE", **bearer(ui))[0] == 501
    assert ui.server_address[0] == "127.0.0.1"


def test_the_command_prints_the_address_and_ends_with_ctrl_c(monkeypatch):
    def interrupted(self, poll_interval):
        raise KeyboardInterrupt

    monkeypatch.setattr(server.UiServer, "serve_forever", interrupted)
    done = CliRunner().invoke(main, ["ui"])
    assert done.exit_code == 0 and done.stderr == "hfdt: stopped\n"
    address = urlsplit(done.stdout.strip())
    assert address.hostname == "127.0.0.1" and len(address.query) > len("token=") + 20
    with UiServer(0) as taken:
        for port in (taken.server_port, 70_000):
            done = CliRunner().invoke(main, ["ui", "--port", str(port)])
            assert (
                done.exit_code == 2 and f"--port must be one that is free, up to 65535. Received: {port}" in done.stderr
            )


def test_no_command_line_of_a_browser_has_the_token(monkeypatch):
    opened = []

    def launch(path):
        opened.append((path, os.stat(path).st_mode & 0o77, Path(path).read_text()))

    def interrupted(self, poll_interval):
        raise KeyboardInterrupt

    monkeypatch.setattr("click.launch", launch)
    monkeypatch.setattr(server.UiServer, "serve_forever", interrupted)
    address = CliRunner().invoke(main, ["ui", "--open"]).stdout.strip()
    ((path, mode, content),) = opened
    assert address.partition("token=")[2] not in path and mode == 0 and f"url={address}" in content
    assert not os.path.exists(path)


# -- runs --
def test_detached_and_attached_runs_are_listed_and_shown(ui, process, tmp_path):
    client = process()
    run = detached(client, tmp_path / "logs", process(**{ENGINE_VARIABLE: "unix:x"}).pid)
    with registered(RunRequest("hfdt", script="own.py"), None, tmp_path / "none"):
        found = seen(ui, run.name)
        assert {(row["name"], row["kind"]) for row in found["rows"]} == {
            (run.name, "detached"),
            (f"own-{os.getpid()}", "attached"),
        }
    row = next(row for row in found["rows"] if row["name"] == run.name)
    assert (row["state"], row["at"], row["can_stop"], row["running"]) == ("training", "1/2", True, True)
    assert (row["line"], row["command"]) == ("Epoch 1/2  <b>5/10</b>", "nfdt run --detach train.py")
    (page,) = found["runs"]
    (worker,) = page["workers"]
    assert (worker["host"], worker["state"], worker["at"]) == ("here", "training", "epoch 1, step 3")
    assert (worker["staleness"], worker["last"]) == (1.5, "worker 0 says <i>hello</i>")
    until(lambda: memory_of_worker(ui, run) > 1_000_000)  # as the process has it now: it has just been started
    rows = {row["name"]: row for row in seen(ui)["rows"]}
    assert rows[f"own-{os.getpid()}"]["state"] == "ended", "an attached run stays on the page"
    assert attached_runs() == []


def test_a_killed_worker_is_seen_before_its_engine_reports_it(ui, process, tmp_path):
    worker = process(**{ENGINE_VARIABLE: "unix:x"})
    run = detached(process(), tmp_path / "logs", worker.pid)
    assert seen(ui, run.name)["runs"][0]["workers"][0]["state"] == "training"
    worker.kill()
    until(lambda: seen(ui, run.name)["runs"][0]["workers"][0]["state"] == "gone")
    append(tmp_path / "logs", {"kind": "fault", "message": "lost", "member": "worker 0", "action": "replaced"})
    assert seen(ui, run.name)["runs"][0]["workers"][0]["state"] == "lost"
    replacement = process(**{ENGINE_VARIABLE: "unix:x"}).pid
    attached = {"kind": "attached", "rank": 0, "role": "worker", "pid": replacement, "host": "here", "log": ""}
    append(tmp_path / "logs", attached)
    assert seen(ui, run.name)["runs"][0]["workers"][0]["state"] == "attached"


def test_a_process_that_is_no_worker_and_a_file_that_is_no_log_are_left_alone(ui, process, tmp_path):
    """The numbers of a container's processes, and paths, come from a file."""
    (tmp_path / "secret").write_text("secret")
    run = detached(process(), tmp_path / "logs", process().pid, 2**31)
    for rank, log in enumerate((tmp_path / "secret", tmp_path / "logs" / ".." / "secret")):
        append(
            tmp_path / "logs",
            {"kind": "attached", "rank": rank, "role": "worker", "pid": 1, "host": "", "log": str(log)},
        )
    (tmp_path / "logs" / "link").symlink_to(tmp_path / "secret")
    link = {
        "kind": "attached",
        "rank": 2,
        "role": "worker",
        "pid": -1,
        "host": "",
        "log": str(tmp_path / "logs" / "link"),
    }
    append(tmp_path / "logs", link)
    workers = seen(ui, run.name)["runs"][0]["workers"]
    assert [(worker["last"], worker["state"]) for worker in workers] == [("", "attached")] * 3


def test_stop_ends_the_client_and_needs_the_token(ui, process, tmp_path):
    client = process()
    run = detached(client, tmp_path / "logs")
    assert ask(ui, f"/stop?run={run.name}", "POST")[0] == 403
    assert client.poll() is None
    assert ask(ui, f"/stop?run={run.name}", "POST", **bearer(ui))[0] == 202
    assert client.wait(WITHIN_S) != 0
    run.write("end", {"code": 130})
    row = until(lambda: next(row for row in seen(ui)["rows"] if not row["running"]))
    assert (row["state"], row["can_stop"]) == ("exit code 130", False)
    assert ask(ui, f"/stop?run={run.name}", "POST", **bearer(ui))[0] == 409


def test_runs_of_a_killed_command_are_removed_and_of_one_without_a_home_there_are_none(process, tmp_path, monkeypatch):
    client = process()
    attached_home().mkdir(parents=True, mode=0o700)
    (attached_home() / "train-1").mkdir(mode=0o700)
    run = live.AttachedRun(attached_home() / "train-1")
    run.write("run", {"space": space()})
    run.write("processes", {"client": asdict(ProcessIdentity.of(client.pid))})
    assert [each.name for each in attached_runs()] == ["train-1"]
    client.kill()
    client.wait()
    assert attached_runs() == [] and not run.directory.exists()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with registered(RunRequest("hfdt"), None, tmp_path) as none:
        assert none is None


# -- many records --
def many(logs, workers=20, steps=250, epochs=20):
    """Append 100,000 records of `progress`."""
    with open(logs / "records.jsonl", "a") as file:
        for number in range(steps * epochs):
            for rank in range(workers):
                record = progress(rank, number // steps, number % steps, loss=1 / (1 + number), acc=0.5)
                file.write(f'{{"time": {1.9e9 + number / 5}, {json.dumps(record)[1:]}\n')


def test_of_100_000_records_little_is_sent_and_only_new_ones_are_read(ui, process, tmp_path, monkeypatch):
    run = detached(process(), tmp_path / "logs", *[0] * 20)
    many(tmp_path / "logs")
    (page,) = seen(ui, run.name)["runs"]
    assert len(page["workers"]) == 20 and len(json.dumps(page)) < 300_000
    assert len(page["curves"]["loss"]["running"]["y"]) < 1000
    read = []
    monkeypatch.setattr(live.RunReader, "_take", lambda self, block: read.append(block))
    append(tmp_path / "logs", {"kind": "note", "text": "new"}, now=2e9)
    seen(ui, run.name)
    assert [json.loads(block)["text"] for block in read] == ["new"]


# -- Chromium --
@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


def test_chromium_shows_a_run_its_killed_worker_and_stops_it(ui, process, tmp_path, browser):
    worker, client = process(**{ENGINE_VARIABLE: "unix:x"}), process()
    run = detached(client, tmp_path / "logs", worker.pid, *[0] * 19)
    many(tmp_path / "logs", steps=25)
    browser.open(ui.url)
    browser.wait("document.querySelectorAll('canvas').length >= 5")
    text = browser.text()
    for each in (
        run.name,
        "Epoch 1/2 <b>5/10</b>",
        "worker 19 says <i>hello</i>",
        "loss by epoch",
        "nfdt run --detach",
    ):
        assert each in text
    assert browser.run("document.querySelectorAll('section table tr').length") >= 22
    assert "gone" not in text
    worker.kill()
    browser.wait("document.body.innerText.includes('gone')")
    append(tmp_path / "logs", {"kind": "epoch", "epoch": 19, "logs": {"later": 1.0}})
    append(tmp_path / "logs", {"kind": "epoch", "epoch": 20, "logs": {"later": 2.0}})
    browser.wait("document.body.innerText.includes('later by epoch')")
    browser.run("document.querySelector('tr button').click()")
    browser.wait("document.querySelector('tr button').innerText === 'Really stop?'")
    assert client.poll() is None
    browser.run("document.querySelector('tr button').click()")
    assert client.wait(WITHIN_S) != 0
    run.write("end", {"code": 130})
    browser.wait("document.body.innerText.includes('exit code 130')")
    assert browser.console == []
    ui.token = "another"
    browser.wait("document.body.innerText.includes('the token is missing or wrong')")


def test_chromium_overlays_chosen_runs(ui, process, tmp_path, browser):
    client = process()
    names = [detached(client, tmp_path / name, 0, name=f"{name}.py").name for name in ("a", "b")]
    for name in ("a", "b"):
        append(tmp_path / name, *[{"kind": "epoch", "epoch": n, "logs": {"loss": 1 / (1 + n)}} for n in range(3)])
    browser.open(ui.url)
    browser.wait(
        "document.querySelectorAll('tr.chosen').length === 1 && document.querySelectorAll('canvas').length >= 2"
    )
    browser.run("[...document.querySelectorAll('tr.choice:not(.chosen) input')][0].click()")
    browser.wait("document.querySelectorAll('tr.chosen').length === 2")
    browser.wait(f"document.querySelector('.u-legend').innerText.includes('{names[0]}')")
    assert names[1] in browser.run("document.querySelector('.u-legend').innerText")
