"""Reporters on events made by hand."""

import io
import json
import sys

import pytest

from fdt.report import (
    JobSummary,
    Reporter,
    Reporters,
    Screen,
    duration,
    format_logs,
    format_number,
    nbytes,
    quantity,
    rate,
)
from fdt.report.progress import Plain
from fdt.report.records import Jsonl
from fdt.report.status import EpochProgress
from fdt.report.summary import Summary
from fdt.rpc.session_pb2 import EpochEnd, Event, Failed, Progress, Ready, StepEnd, WorkerShare

JOB = JobSummary("j", engine="nfdt", workers=2, epochs=3, steps_per_epoch=10, samples=640, batch_size=64)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def progress(rank, step, samples, **logs):
    return Event(job="j", rank=rank, progress=Progress(epoch=0, step=step, samples=samples, logs=logs))


def epoch_end(**extra):
    shares = [
        WorkerShare(rank=0, steps=6, samples=384, seconds=3.0, busy_seconds=2.4),
        WorkerShare(rank=1, steps=4, samples=256, seconds=2, busy_seconds=2),
    ]
    end = EpochEnd(epoch=0, steps=10, samples=640, extra=extra, seconds=4.0, bytes_sent=3000, bytes_received=2_000_000)
    end.workers.extend(shares)
    return Event(job="j", epoch_end=end)


STALE = {"staleness_mean": 1.25, "staleness_median": 1.0, "staleness_max": 3.0}


def play(reporter, logs=None, clock=None, **extra):
    """One fit of one epoch."""
    reporter.job(JOB)
    reporter.epoch_begin(0)
    reporter.event(progress(0, 3, 192, loss=1.0, acc=0.5))
    reporter.event(progress(1, 2, 64, loss=3.0))
    if clock:
        clock.now += 4.0
    reporter.event(epoch_end(**extra))
    reporter.epoch_end(0, logs or {"acc": 0.75, "loss": 0.321})
    reporter.job_end()
    reporter.close()


# -- the workers' progress as one -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("adds_steps", "step"), [(True, 5), (False, 3)])
def test_tally_weighs_logs_by_samples(adds_steps, step):
    tally = EpochProgress(adds_steps)
    tally.begin(0)
    tally.progress(0, progress(0, 3, 192, loss=1.0, acc=0.5).progress)
    tally.progress(1, progress(1, 2, 64, loss=3.0).progress)
    assert (tally.step, tally.samples) == (step, 256)
    assert tally.logs == {"acc": 0.5, "loss": (1.0 * 192 + 3.0 * 64) / 256}


def test_tally_leaves_out_late_reports_and_takes_the_latest_of_a_worker():
    tally = EpochProgress(True)
    tally.begin(1)
    tally.progress(0, Progress(epoch=0, step=10, samples=640))
    tally.progress(0, Progress(epoch=1, step=1, samples=64, logs={"loss": 2.0}))
    tally.progress(0, Progress(epoch=1, step=2, samples=128, logs={"loss": 1.0}))
    assert (tally.step, tally.samples, tally.logs) == (2, 128, {"loss": 1.0})


def test_tally_with_no_samples_yet_is_a_plain_mean():
    tally = EpochProgress(False)
    tally.begin(0)
    tally.progress(0, progress(0, 0, 0, loss=1.0).progress)
    tally.progress(1, progress(1, 0, 0, loss=3.0).progress)
    assert tally.logs == {"loss": 2.0}


def test_tally_in_lock_step_has_the_engines_aggregate():
    tally = EpochProgress(True)
    tally.begin(0)
    tally.step_end(StepEnd(step=4, logs={"loss": 0.5}))
    assert (tally.step, tally.logs) == (4, {"loss": 0.5})


# -- lines ------------------------------------------------------------------------------------------------------------
def test_a_pipe_gets_one_line_an_epoch_with_the_final_logs(capsys):
    play(Screen("nfdt", adds_steps=True), {"acc": 0.75, "loss": 0.321, "val_loss": 5e-4}, **STALE)
    out, err = capsys.readouterr()
    assert out == (
        "Epoch 1/3 - 10 steps - 4.0s - 160 samples/s - acc: 0.7500 - loss: 0.3210 - val_loss: 5.0000e-04"
        " - staleness: 1.25\n"
    )
    assert err == ""


def test_verbose_0_and_quiet_say_nothing(capsys):
    for quiet, verbose in ((False, 0), (True, 1), (True, 2)):
        screen = Screen("hfdt", adds_steps=False, quiet=quiet)
        screen.job(JobSummary("j", verbose=verbose))
        screen.epoch_begin(0)
        screen.event(epoch_end())
        screen.epoch_end(0, {"loss": 1.0})
        screen.job_end()
    assert capsys.readouterr() == ("", "")


def test_plain_measures_what_the_engine_does_not_tell(capsys):
    clock = Clock()
    plain = Plain(clock)
    plain.epoch_begin(4)
    clock.now += 75
    plain.event(Event(epoch_end=EpochEnd(epoch=4, steps=1, samples=150)))
    plain.epoch_end(4, {"loss": 0.0})
    assert capsys.readouterr().out == "Epoch 5/1 - 1 step - 1:15 - 2 samples/s - loss: 0.0000\n"


def test_notes_are_lines_on_stderr_and_the_end_of_a_lost_workers_log_is_shown(capsys):
    screen = Screen("hfdt", adds_steps=False)
    screen.note("jit_compile is off")
    screen.event(Event(failed=Failed(message="worker 1 was lost", detail="one\ntwo")))
    screen.event(Event(failed=Failed(message="", detail="Traceback", users_code=True)))
    assert capsys.readouterr() == ("", "hfdt: jit_compile is off\n  | one\n  | two\n")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (duration(0.44), "0.4s"),
        (duration(59.4), "59s"),
        (duration(61), "1:01"),
        (duration(3723), "1:02:03"),
        (quantity(1, "step"), "1 step"),
        (quantity(2000, "epoch"), "2,000 epochs"),
        (quantity(0, "batch"), "0 batches"),
        (nbytes(999), "999 bytes"),
        (nbytes(1200), "1.2 kB"),
        (nbytes(999_700), "1 MB"),
        (nbytes(5e15), "5e+03 TB"),
        (rate(12345.6, 1), "12,346 samples/s"),
        (rate(1, 8), "0.125 samples/s"),
        (rate(1, 0), ""),
        (format_number(1e-3), "1.0000e-03"),
        (format_logs({"cm": [[1, 2], [3, 4]]}), "cm: [[1, 2], [3, 4]]"),
    ],
)
def test_numbers_as_people_read_them(said, expected):
    assert said == expected


# -- the summary ------------------------------------------------------------------------------------------------------
def test_summary_is_a_fact_a_line_on_stderr(capsys):
    clock = Clock()
    play(Summary("nfdt", 2, "/logs", clock=clock), clock=clock, **STALE)
    out, err = capsys.readouterr()
    assert out == ""
    facts = dict(line.removeprefix("nfdt: ").split(":", 1) for line in err.splitlines())
    assert {name: value.strip() for name, value in facts.items()} == {
        "workers": "2",
        "trained": "1 epoch, 10 steps, 640 samples, 4.0s",
        "throughput": "160 samples/s",
        "computing": "1.10 workers at the same time, on average",
        "moved": "3 kB sent, 2 MB received by workers",
        "staleness": "mean 1.25, largest 3",
        "worker 0": "6 steps, 384 samples, 3.0s (80% computing, 20% waiting)",
        "worker 1": "4 steps, 256 samples, 2.0s (100% computing, 0% waiting)",
        "logs": "/logs",
    }


def test_summary_adds_epochs_up_and_weighs_staleness_by_steps(capsys):
    clock = Clock()
    summary = Summary("nfdt", 2, "", clock=clock)
    for mean, steps in ((1.0, 30), (2.0, 10)):
        summary.epoch_begin(0)
        extra = {"staleness_mean": mean, "staleness_median": mean, "staleness_max": 4 * mean}
        summary.event(Event(epoch_end=EpochEnd(steps=steps, samples=10, extra=extra)))
    summary.close()
    assert "mean 1.25, largest 8" in capsys.readouterr().err


def test_summary_of_one_worker_whose_computing_time_is_not_measured(capsys):
    summary = Summary("hfdt", 1, "", clock=Clock())
    summary.epoch_begin(0)
    share = WorkerShare(rank=0, steps=1, samples=1, seconds=2)
    summary.event(Event(epoch_end=EpochEnd(steps=1, samples=1, workers=[share])))
    summary.close()
    err = capsys.readouterr().err
    assert "trained:     1 step, 1 sample, " in err and "worker 0:    1 step, 1 sample, 2.0s\n" in err
    assert "computing" not in err


@pytest.mark.parametrize(
    ("field", "given", "line"),
    [
        ("algorithm", ("ddc_asgd", "asgd", "ddc_asgd", ""), "algorithm:   ddc_asgd, asgd"),
        (
            "why_chosen",
            ("buckets of 8 MB (link)", "", "fp16 (a step)", "buckets of 8 MB (link)"),
            "chosen:      buckets of 8 MB (link); fp16 (a step)",
        ),
    ],
)
def test_summary_says_once_what_several_fits_say(capsys, field, given, line):
    summary = Summary("hfdt", 2, "", clock=Clock())
    for text in given:
        summary.event(Event(ready=Ready(**{field: text})))
        summary.event(epoch_end())
    summary.close()
    assert f"hfdt: {line}\n" in capsys.readouterr().err


def test_summary_of_nothing_and_of_an_error_is_nothing(capsys):
    Summary("hfdt", 2, "").close()
    failed = Summary("hfdt", 2, "")
    failed.event(epoch_end())
    failed.event(Event(failed=Failed(message="lost")))
    failed.silence()
    failed.close()
    assert failed.failed
    assert capsys.readouterr() == ("", "")


# -- JSON lines -------------------------------------------------------------------------------------------------------
def test_jsonl_has_every_record(tmp_path):
    reporter = Jsonl(tmp_path, workers=2)
    reporter.note("hello")
    reporter.event(Event(job="j", ready=Ready(steps_per_epoch=10, chosen={"compress": "fp16"}, why_chosen="fp16")))
    play(reporter, {"loss": 0.5, "odd": "text"}, **STALE)
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [r["kind"] for r in records] == [
        "note", "ready", "job", "progress", "progress", "epoch_end", "epoch", "summary",
    ]  # fmt: skip
    by_kind = {record["kind"]: record for record in records}
    assert (by_kind["ready"]["steps_per_epoch"], by_kind["ready"]["chosen"]) == (10, {"compress": "fp16"})
    assert by_kind["summary"]["chosen"] == ["fp16"]
    assert (by_kind["progress"]["rank"], by_kind["progress"]["samples"]) == (1, 64)
    assert by_kind["epoch_end"]["workers"][1]["samples"] == 256
    assert by_kind["epoch_end"]["extra"] == STALE
    assert by_kind["epoch"]["logs"] == {"loss": 0.5, "odd": "text"}
    assert (by_kind["summary"]["samples"], by_kind["summary"]["per_worker"]["0"]["steps"]) == (640, 6)
    assert all(record["job"] == "j" for record in records[2:])


# -- several as one ---------------------------------------------------------------------------------------------------
class Full(Reporter):
    def event(self, event):
        raise OSError(28, "No space left on device")


class Kept(Reporter):
    def __init__(self):
        self.events, self.notes = 0, []

    def event(self, event):
        self.events += 1

    def note(self, text):
        self.notes.append(text)


def test_a_reporter_that_cannot_write_is_left_out_and_training_goes_on():
    kept = Kept()
    together = Reporters([Full(), kept])
    together.event(Event())
    together.event(Event())
    assert kept.events == 2
    (note,) = kept.notes
    assert "Full failed" in note and "No space left" in note


def test_a_script_that_replaces_stdout_gets_our_lines_there(monkeypatch):
    elsewhere = io.StringIO()
    plain = Plain(Clock())
    monkeypatch.setattr(sys, "stdout", elsewhere)
    plain.epoch_end(0, {"loss": 1.0})
    assert elsewhere.getvalue().startswith("Epoch 1/1")
