"""`hfdt ui` and a run as a user starts them, in Chromium: a worker that is killed, and Stop."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fdt.cli.detach import attached_runs
from tests.browser import chromium
from tests.load import added_s, stalled_s
from tests.pages import page_data

pytestmark = [pytest.mark.exclusive, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).parent / "scripts" / "endings.py"
SHOWN_S = 3.0  # the bound, without other load


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Start a command, whose output goes to a file; all are ended with the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    started = []

    def command(output, *argv):
        with open(output, "w") as file:
            program = [sys.executable, "-um", *map(str, argv)]
            started.append(subprocess.Popen(program, stdout=file, stderr=subprocess.STDOUT))
        return started[-1]

    yield command
    for each in started:
        each.send_signal(signal.SIGINT)
        each.wait(60)


def test_a_killed_worker_is_shown_within_three_seconds_and_stop_ends_the_run(start, tmp_path):
    address, output, logs = (tmp_path / name for name in ("address", "output", "logs"))
    with chromium(tmp_path / "chromium") as browser:
        start(address, "hfdt", "ui")
        options = ("--log-dir", logs, "--restarts", 1)
        run = start(output, "nfdt", "run", *options, SCRIPT, 100_000, "stop", "-np", 2)
        while not address.read_text().endswith("\n"):
            browser.run("new Promise(done => setTimeout(done, 50))")
        browser.open(address.read_text().strip())
        browser.wait("document.body.innerText.includes('loss by epoch')", 120)
        browser.wait("/training\\s+epoch \\d+/.test(document.body.innerText)")
        assert [each.name for each in attached_runs()] == [f"endings-{run.pid}"]
        written = (logs / "records.jsonl").read_text()
        records = [json.loads(line) for line in written[: written.rindex("\n")].splitlines()]
        pids = {
            each["rank"]: each["pid"] for each in records if each["kind"] == "attached" and each["role"] == "worker"
        }
        before = stalled_s()
        os.kill(pids[1], signal.SIGKILL)
        assert browser.wait("/\\b(gone|lost)\\b/.test(document.body.innerText)") < SHOWN_S + added_s(before)
        browser.wait("document.body.innerText.includes('worker 1 was lost: signal 9 (SIGKILL)')")
        browser.wait("!/\\b(gone|lost)\\b/.test(document.querySelectorAll('table')[1].innerText)", 60)  # replaced
        for said in ("Stop", "Really stop?"):
            browser.wait(f"document.querySelector('tr button').innerText === '{said}'")
            browser.run("document.querySelector('tr button').click()")
        assert run.wait(60) == 130
        browser.wait("/\\bended\\b/.test(document.querySelector('tr.choice').innerText)")
        assert browser.console == []
    assert output.read_text().endswith("nfdt: interrupted\n") and attached_runs() == []
    (shown,) = page_data((logs / "report.html").read_text())["runs"]
    assert shown["state"] == "interrupted" and "fault" in [event["kind"] for event in shown["events"]]
    assert {worker["rank"] for worker in shown["workers"]} == {0, 1} and shown["workers"][0]["peak_bytes"] > 1e8
