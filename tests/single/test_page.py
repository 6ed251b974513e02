"""The report: what it gathers from records, hostile ones too, and the page as Chromium shows it."""

import base64
import hashlib
import json
import os
import re

import pytest
from click.testing import CliRunner

from client_shim.verify.plan import VERDICT
from fdt.report import JobSummary
from fdt.report.records import Jsonl, describe_run
from fdt.rpc.session_pb2 import Attached, EpochEnd, Event, Failed, Fault, Progress
from fdt.runs import ProcessIdentity, space
from fdt.timeline import TraceSpan, seconds_by_purpose
from frontends.report import REPORT, write_run_report
from frontends.report.curves import Curve
from frontends.report.page import FILES, embedded, render
from frontends.report.reader import RunReader
from frontends.report.run_data import RunData
from hfdt.cli import main
from tests.browser import chromium
from tests.pages import page_data

JOB = JobSummary("j", engine="nfdt", workers=2, epochs=2, steps_per_epoch=10, samples=640, batch_size=64)
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def end_of(epoch):
    extra = {"staleness_mean": 1.5, "staleness_median": 1.0, "staleness_max": 3.0}
    end = EpochEnd(epoch=epoch, steps=10, samples=640, seconds=2.0, bytes_sent=300, bytes_received=400, extra=extra)
    of_worker = {"steps": 5, "samples": 320, "seconds": 2, "busy_seconds": 1.5, "bytes_sent": 150, "staleness": 1.5}
    for rank in (0, 1):
        end.workers.add(rank=rank, memory_bytes=7000, **of_worker)
    return end


def play(directory, *, epochs=2, engine="nfdt", end=True, metric="loss", **about):
    """Let the run's own reporter write a run of two workers, as the client calls it."""
    reporter = Jsonl(directory, 2, about=describe_run(engine, **{"command": [engine, "run", "train.py"], **about}))
    for rank in (0, 1):
        attached = Attached(role="worker", rank=rank, pid=4, host=f"node{rank}", log="")
        reporter.event(Event(job="j", rank=rank, attached=attached))
    reporter.job(JOB)
    for epoch in range(epochs):
        reporter.epoch_begin(epoch)
        for rank in (0, 1):
            progress = Progress(
                epoch=epoch,
                step=2 + rank,
                samples=128,
                logs={metric: 2.0 - epoch, "simulated_s": 1.0},
                memory_bytes=5000,
            )
            reporter.event(Event(job="j", rank=rank, progress=progress))
        reporter.event(Event(job="j", epoch_end=end_of(epoch)))
        reporter.epoch_end(epoch, {metric: 1.0 - epoch / 4, f"val_{metric}": 1.5 - epoch / 4})
    fault = Fault(message="worker 1 was lost: signal 9", member="worker 1", action="replaced")
    reporter.event(Event(job="j", fault=fault))
    reporter.note("a note")
    if end:
        reporter.ended(0, "")
        reporter.close()
    return reporter


def report(*argv):
    return CliRunner().invoke(main, ["report", *map(str, argv)])


def reported(*argv):
    done = report(*argv, "--out", "-")
    assert done.exit_code == 0, done.stderr
    return page_data(done.stdout)["runs"]


# -- what is gathered -------------------------------------------------------------------------------------------------
def test_a_run_is_gathered_from_its_records(tmp_path):
    play(tmp_path)
    done = report(tmp_path)
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / REPORT}\n")
    (run,) = page_data((tmp_path / REPORT).read_text())["runs"]
    assert (run["state"], run["error"], run["name"]) == ("finished", "", tmp_path.name)
    loss = run["curves"]["loss"]
    assert (loss["train"]["e"], loss["train"]["y"], loss["validation"]["y"]) == ([1, 2], [1.0, 0.75], [1.5, 1.25])
    assert (
        list(run["curves"]) == ["loss"]
        and loss["running"]["e"][0] == pytest.approx(0.2)
        and loss["running"]["y"][0] == 2.0
    )
    assert run["measures"]["rate"]["train"]["y"] == [320, 320]
    assert run["measures"]["staleness"]["mean"]["y"] == [1.5, 1.5] and run["measures"]["staleness"]["largest"]["y"] == [
        3,
        3,
    ]
    assert run["measures"]["bytes"]["received"]["y"] == [400, 400]
    first, second = run["workers"]
    assert (first["host"], first["steps"], first["bytes_sent"], first["peak_bytes"]) == ("node0", 10, 300, 7000)
    assert (second["state"], second["staleness"], second["memory"]["y"][-1]) == ("ended", 1.5, 7000)
    assert [(event["kind"], event["text"]) for event in run["events"]] == [
        ("fault", "worker 1 was lost: signal 9"),
        ("note", "a note"),
    ]
    assert len(run["spans"]) == 2 and all(0 <= begin <= end for begin, end in run["spans"])
    assert run["about"]["command"][0] == "nfdt" and {"python", "numpy", "hfdt-nfdt"} <= set(run["about"]["versions"])
    times = {"compute": 3.0, "exchange and waiting": 1.0}
    assert run["purposes"] == [{"worker": "worker 0", **times}, {"worker": "worker 1", **times}]
    assert run["notices"] == [] and run["verify"] is None


def test_several_runs_get_names_that_tell_them_apart(tmp_path):
    for name in ("a/logs", "b/logs"):
        (tmp_path / name).mkdir(parents=True)
        play(tmp_path / name)
    runs = reported(tmp_path / "a" / "logs", tmp_path / "b" / "logs" / "records.jsonl")
    assert [run["name"] for run in runs] == ["a/logs", "b/logs"]


def test_records_that_cannot_be_read_are_named_in_a_line_and_the_rest_is_shown(tmp_path):
    play(tmp_path)
    file = tmp_path / "records.jsonl"
    lines = file.read_text().splitlines()
    hostile = ["\0\xff", "[1, 2]", '{"kind": "epoch"}', '{"time": 1e999, "kind": "note"}', "[" * 100_000, "9" * 5000]
    hostile += ['{"kind": "progress", "time": 1, "rank": [], "epoch": 0}', '{"kind": ["run"], "time": 5}']
    file.write_text("\n".join([*lines[:4], *hostile, *lines[4:], '{"kind": "epo']), encoding="latin-1")
    done = report(tmp_path)
    assert done.exit_code == 0 and len(done.stderr.splitlines()) == 2
    assert f"8 of {len(lines) + 8} lines left out, as no record of a run; the first is line 5, " in done.stderr
    assert "the last line is truncated" in done.stderr
    (run,) = page_data((tmp_path / REPORT).read_text())["runs"]
    assert run["curves"]["loss"]["train"]["y"] == [1.0, 0.75] and len(run["notices"]) == 2


def test_a_value_that_is_not_finite_is_listed_and_not_drawn(tmp_path):
    reporter = play(tmp_path, end=False)
    for epoch, value in ((2, float("nan")), (3, float("inf"))):
        reporter.event(Event(job="j", rank=0, progress=Progress(epoch=epoch, step=1, samples=1, logs={"acc": value})))
        reporter.epoch_end(epoch, {"loss": value, "odd": "text"})
    reporter.close()
    (run,) = reported(tmp_path)
    assert run["curves"]["loss"]["train"]["y"] == [1.0, 0.75] and "odd" not in run["curves"]
    texts = [event["text"] for event in run["events"] if event["kind"] == "not finite"]
    assert texts == [
        "acc is NaN in epoch 3; its curve leaves such values out",
        "loss is nan in epoch 3; its curve leaves such values out",
    ]


def test_a_run_that_runs_one_that_was_killed_and_one_that_failed(tmp_path):
    me = ProcessIdentity.of(os.getpid())
    reporter = play(tmp_path, end=False, process=vars(me), space=space())
    assert reported(tmp_path)[0]["state"] == "running"
    reporter.ended(130, "")
    assert reported(tmp_path)[0]["state"] == "interrupted"
    reporter.event(Event(job="j", failed=Failed(message="worker 0 was lost")))
    reporter.ended(1, "worker 0 was lost")
    reporter.close()
    (run,) = reported(tmp_path)
    assert (run["state"], run["error"]) == ("failed", "worker 0 was lost")
    play(tmp_path, end=False, process={"pid": me.pid, "started": "another boot 7"}, space=space()).close()
    records = (tmp_path / "records.jsonl").read_text().splitlines()
    (tmp_path / "records.jsonl").write_text("\n".join(line for line in records if '"summary"' not in line) + "\n")
    assert reported(tmp_path)[0]["state"] == "lost"


def test_epochs_of_several_fits_follow_each_other_and_a_resumed_fit_continues():
    data = RunData("a")
    records = [{"kind": "run"}]
    for job, first, last in (("1", 0, 2), ("2", 0, 1), (None, 0, 0), ("3", 1, 3)):
        if job is None:
            records.append({"kind": "run", "resumed": True})
            continue
        records.append({"kind": "job", "job": job, "engine": "hfdt", "epochs": 3 if job != "1" else 2})
        records += [{"kind": "epoch", "epoch": epoch, "logs": {"loss": 1}} for epoch in range(first, last)]
    for number, record in enumerate(records):
        data.add({"time": 1000.0 + number, **record})
    curve = data.as_json()["curves"]["loss"]["train"]
    assert curve["e"] == [1, 2, 3, 4, 5], "two of the first fit; one of the second, and its rest once it was resumed"
    assert [event["text"] for event in data.events] == ["the run was resumed"] and len(data.jobs) == 2
    for number in range(3):
        data.add({"kind": "training", "time": 1050.0 + number, "step": 100 * number})
    assert data.as_json()["measures"]["steps"]["done"]["y"] == [0, 100, 200]


def test_what_is_appended_is_read_once_and_another_runs_file_anew(tmp_path):
    reporter = play(tmp_path, epochs=1, end=False)
    reader = RunReader(tmp_path, "a")
    assert reader.update() and not reader.update()
    reporter.epoch_end(1, {"loss": 0.5})
    assert reader.update()
    assert reader.as_json()["curves"]["loss"]["train"]["y"] == [1.0, 0.5]
    reporter.close()
    play(tmp_path, epochs=1)
    assert reader.update()
    assert reader.as_json()["curves"]["loss"]["train"]["y"] == [1.0]


def test_a_curve_stays_small_and_keeps_its_peaks_and_its_end():
    curve = Curve(limit=16)
    for number in range(1000):
        curve.add(number, 2 * number, {331: 9.0, 777: -9.0}.get(number, number / 1000))
    points = curve.points()
    assert len(points) <= 34 and points == sorted(points)
    assert (331, 662, 9.0) in points and (777, 1554, -9.0) in points and points[-1] == (999, 1998, 0.999)


def test_times_by_purpose_are_sums_of_spans():
    """The exchange takes 4 s; until the last gradient was there, 3 s, it waited."""
    spans = [
        TraceSpan("worker 0", "main", "input", 0, 1, 1, 1),
        TraceSpan("worker 0", "main", "forward and backward", 1, 3, 1, 1),
        TraceSpan("worker 0", "main", "exchange", 3, 7, 1, 1),
        TraceSpan("worker 0", "gradient 0", "wait", 2, 6, 1, 1),
        TraceSpan("worker 0", "gradient 0", "transfer", 6, 7, 1, 1),
        TraceSpan("worker 0", "main", "update", 7, 8, 1, 1),
        TraceSpan("worker 0", "main", "exchange", 9, 10, 1, 2),
        TraceSpan("client", "fit", "training", 0, 8),
        TraceSpan("worker 1", "lane 0", "wait for an epoch", 0, 2),
    ]
    found = {"input": 1.0, "compute": 3.0, "exchange": 2.0, "waiting": 3.0}
    assert seconds_by_purpose(spans) == {"worker 0": found, "worker 1": {"waiting": 2.0}}


def test_a_trace_and_the_numbers_of_verify_are_shown(tmp_path):
    trace = tmp_path / "trace.json"
    sums = {"worker 0": {"input": 1.0, "exchange": 2.0}}
    trace.write_text(f'{{"traceEvents": [\n], "displayTimeUnit": "ms", "otherData": {json.dumps({"seconds": sums})}}}')
    play(tmp_path, timeline=str(trace))
    (tmp_path / VERDICT).write_text(json.dumps({"outcome": "equal", "text": "10 steps", "steps": []}))
    (run,) = reported(tmp_path)
    assert run["purposes"] == [{"worker": "worker 0", "input": 1.0, "exchange": 2.0}]
    assert run["verify"]["outcome"] == "equal"
    trace.write_text("no trace")
    (tmp_path / VERDICT).write_text("[]")
    (run,) = reported(tmp_path)
    assert "compute" in run["purposes"][0] and run["verify"] is None


# -- the command -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "`report` needs a run: the directory of its --log-dir or --run-dir"),
        (["no-such"], "Received: no-such, neither the name of a run nor a directory with records.jsonl"),
        (["."], "Received: ., a directory without records.jsonl"),
        (["empty"], "empty/records.jsonl holds no record of a run"),
        (["run", "--out", "run/records.jsonl"], "--out must end in .html"),
        (["run", "--out", "none/a.html"], "the report cannot be written: "),
    ],
)
def test_an_error_is_one_line(tmp_path, monkeypatch, argv, says):
    monkeypatch.chdir(tmp_path)
    for name in ("run", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "empty" / "records.jsonl").touch()
    play(tmp_path / "run")
    done = report(*argv)
    assert done.exit_code in (1, 2) and done.stderr.startswith("hfdt: error: ")
    assert says in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_end_of_a_run_writes_its_report_and_survives_where_it_cannot(tmp_path, capsys):
    play(tmp_path)
    write_run_report("hfdt", tmp_path, quiet=False)
    assert capsys.readouterr().err == f"hfdt: report:      {tmp_path / REPORT}\n"
    assert page_data((tmp_path / REPORT).read_text())["runs"][0]["state"] == "finished"
    (tmp_path / REPORT).unlink()
    (tmp_path / REPORT).mkdir()
    write_run_report("hfdt", tmp_path, quiet=False)
    assert "hfdt: the report was not written: " in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["records.jsonl", REPORT]


# -- the page ----------------------------------------------------------------------------------------------------------
def test_no_text_of_a_run_ends_the_script_and_the_page_asks_for_nothing(tmp_path):
    page = render(HOSTILE, [{"name": HOSTILE, "y": [float("nan"), {"{{scripts}}": 1}]}])
    assert page_data(page)["runs"] == [{"name": HOSTILE, "y": ["nan", {"{{scripts}}": 1}]}]
    assert "<img" not in page and "<script>document" not in page
    assert re.findall(r"\s(?:src|href)=|@import|url\(|connect-src", render("a", [])) == []
    assert embedded("\u2028</SCRIPT>&") == '"\\u2028\\u003c/SCRIPT\\u003e\\u0026"'
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.S)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(scripts) == 4 and re.findall("'sha256-([^']*)'", policy) == hashes
    assert policy.startswith("default-src 'none';") and len(page) < 120_000


def test_the_chart_library_is_what_npm_has():
    """uplot-1.6.32.tgz, whose integrity is sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXI..."""
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in FILES.glob("uPlot.*")}
    assert digests == {
        "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    }


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


def test_chromium_shows_the_report(tmp_path, browser):
    play(tmp_path, script=HOSTILE)
    (tmp_path / VERDICT).write_text(
        json.dumps(
            {
                "outcome": "equal",
                "text": "1 step is equal",
                "command": "hfdt verify",
                "notes": [HOSTILE],
                "steps": [
                    {"where": "train.py:3", "loss": None, "update": {"alone": 1, "difference": 0, "noise": 2e-7}}
                ],
            }
        )
    )
    assert report(tmp_path).exit_code == 0
    browser.open(f"file://{tmp_path / REPORT}")
    text = browser.text()
    for each in ("loss by epoch", "loss by time", "samples/s", "staleness of pushes", "memory of the workers"):
        assert each in text
    for each in ("Where the time went", "node1", "worker 1 was lost: signal 9", "1 step is equal", "2.00e-7", HOSTILE):
        assert each in text
    assert browser.run("document.querySelectorAll('canvas').length") == 6
    assert browser.run("document.querySelectorAll('img, script:not(:is(body > script))').length") == 0
    assert browser.run("document.title") == tmp_path.name and browser.console == []


def test_chromium_shows_the_rest_where_a_part_has_fields_of_other_types(tmp_path, browser):
    play(tmp_path, command=5, versions=[None])
    (tmp_path / VERDICT).write_text(json.dumps({"outcome": [], "steps": [None, 3]}))
    assert report(tmp_path).exit_code == 0
    browser.open(f"file://{tmp_path / REPORT}")
    assert browser.text().count("The records of this part cannot be drawn: ") == 2
    assert "worker 1 was lost: signal 9" in browser.text()
    assert browser.run("document.querySelectorAll('canvas').length") == 6 and browser.console == []


def test_chromium_shows_runs_overlaid_in_the_dark_and_prints_in_the_light(tmp_path, browser):
    for name, metric in (("a", "loss"), ("<img src=x>", HOSTILE)):
        (tmp_path / name).mkdir()
        play(tmp_path / name, metric=metric)
    assert report(tmp_path / "a", tmp_path / "<img src=x>", "--out", tmp_path / "both.html").exit_code == 0
    browser.look(1240, 1000, dark=True)
    browser.open(f"file://{tmp_path / 'both.html'}")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    for each in (f"{HOSTILE} by epoch", "a, validation", "<img src=x>, validation"):
        assert each in browser.text()
    assert browser.run("document.querySelectorAll('img').length") == 0
    browser.print(tmp_path / "both.pdf")
    assert (tmp_path / "both.pdf").read_bytes().startswith(b"%PDF")
    assert browser.run("document.documentElement.className") == "", "the dark page is back"
    browser.look(1240, 1000)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.console == []
