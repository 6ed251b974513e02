"""--timeline on spans made by hand, and the marks of a step's graph."""

import json
import os
import time
from types import SimpleNamespace

import pytest
import tensorflow as tf

from fdt import timeline
from fdt.errors import UserError
from fdt.report import JobSummary
from fdt.rpc.session_pb2 import EpochEnd, Evaluated, Event, Fault, Span, Spans
from fdt.timeline import ALL_REDUCE, SpanRecorder, Trace
from hfdt.worker.timeline import StepTimeline, Watched
from nfdt.server.job import served
from nfdt.transport import WorkerGradient
from tests.trace_format import spans_of


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def message(process, *spans):
    made = [Span(thread=t, name=n, start=a, end=b, epoch=1, step=1) for t, n, a, b in spans]
    return Event(spans=Spans(process=process, spans=made))


def trace_of(path, *events, validation=True):
    """The trace of one epoch in which training, validation and callbacks take a second each, and the notes."""
    clock, notes = Clock(), []
    trace = Trace(path, notes.append, clock)
    trace.job(JobSummary("j", validation=validation))
    trace.epoch_begin(0)
    for event in events:
        trace.event(event)
    for event in (Event(epoch_end=EpochEnd()), *([Event(evaluated=Evaluated())] if validation else [])):
        clock.now += 1
        trace.event(event)
    clock.now += 1
    trace.epoch_end(0, {})
    trace.job_end()
    return spans_of(json.loads(path.read_text())), notes


def test_an_all_reduce_is_the_wait_for_the_last_rank_and_the_transfer(tmp_path):
    first = message("worker 0", ("gradient 0", ALL_REDUCE, 100.0, 100.9))
    second = message("worker 1", ("gradient 0", ALL_REDUCE, 100.25, 100.9))
    spans, notes = trace_of(tmp_path / "t.json", first, second)
    which = {"epoch": 1, "step": 1}
    waited, sent = ("wait", 0, 250_000, which), ("transfer", 250_000, 900_000, which)
    assert spans["worker 0", "gradient 0"] == [waited, sent]
    assert spans["worker 1", "gradient 0"] == [("wait", 250_000, 250_000, which), sent]
    assert notes == []


def test_steps_that_ranks_repeat_after_a_fault_do_not_meet_those_before(tmp_path):
    before = message("worker 0", ("gradient 0", ALL_REDUCE, 100.0, 100.1))
    after = message("worker 0", ("gradient 0", ALL_REDUCE, 100.5, 100.6))
    spans, notes = trace_of(tmp_path / "t.json", before, Event(fault=Fault()), after)
    assert [(s[0], s[2] - s[1]) for s in spans["worker 0", "gradient 0"]] == [("wait", 0), ("transfer", 100_000)] * 2
    assert notes == []


@pytest.mark.parametrize("validation", [True, False])
def test_the_clients_time_is_training_validation_and_callbacks(tmp_path, validation):
    spans, _ = trace_of(tmp_path / "t.json", validation=validation)
    names = ["training", *(["validation"] if validation else []), "callbacks"]
    assert spans["client", "fit"] == [
        (n, i * 1_000_000, (i + 1) * 1_000_000, {"epoch": 1}) for i, n in enumerate(names)
    ]


def test_clocks_that_differ_are_reported(tmp_path):
    first = message("worker 0", ("gradient 0", ALL_REDUCE, 100.0, 100.1))
    late = message("worker 1", ("gradient 0", ALL_REDUCE, 100.35, 100.45))  # begins after worker 0 has the sum
    _, (note,) = trace_of(tmp_path / "t.json", first, late)
    assert "differ by 250 ms or more" in note


def test_a_long_run_is_cut_with_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline, "LIMIT", 2)
    spans, (note,) = trace_of(tmp_path / "t.json", message("worker 0", *[("main", "input", 100.0, 100.0)] * 3))
    assert list(spans) == [("worker 0", "main")]
    assert note == "--timeline has the first 2 spans; 4 later ones are left out"


def test_a_file_that_cannot_be_written_is_an_error_before_the_run(tmp_path):
    with pytest.raises(UserError, match="--timeline cannot be written"):
        Trace(tmp_path / "missing" / "t.json", print)
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path, monkeypatch):
    """In /tmp another user can make links for all names that can be guessed."""
    (tmp_path / "victim").write_text("kept")
    for name in (f"t.json.{os.getpid()}", ".t.json.known.part"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    Trace(tmp_path / "t.json", print)
    monkeypatch.setattr("fdt.security.secrets.token_hex", lambda _: "known")
    with pytest.raises(UserError, match="--timeline cannot be written"):
        Trace(tmp_path / "t.json", print)
    assert (tmp_path / "victim").read_text() == "kept"


def test_spans_are_sent_before_the_epochs_end():
    sent = []
    recorder = SpanRecorder("worker 0", lambda event: sent.append(event.WhichOneof("kind")))
    recorder.add("main", "input", 1.0, 2.0)
    recorder.send(Event(epoch_end=EpochEnd()))
    recorder.send(Event(epoch_end=EpochEnd()))
    assert sent == ["spans", "epoch_end", "epoch_end"]


# -- HFDT ---------------------------------------------------------------------------------------------------------
def twice(tensors, name):
    return [t * 2 for t in tensors]


def train_step_of(marks, state):
    def train(original, element):
        (batch, _), _ = element
        (added,) = marks.exchange(twice, [batch], "hfdt.gradient.0")
        state.assign_add(twice([added], "hfdt.samples.1")[0])
        return {"loss": added}

    return marks.step(train)


@pytest.mark.parametrize("compiled", [True, False])
def test_each_step_marks_its_times_in_order(compiled):
    marks, state = StepTimeline(1, 2), tf.Variable([0.0])
    step = train_step_of(marks, state)
    run = tf.function(lambda x: step(None, ((x, None), x)), autograph=False) if compiled else None
    begin = time.time()
    for _ in range(3):
        x = tf.constant([1.0])
        run(x) if compiled else step(None, ((x, None), x))
    taken = marks.take()
    assert [list(each) for each in taken] == [["batch", "ready hfdt.gradient.0", "added hfdt.gradient.0", "done"]] * 3
    times = [at for each in taken for at in each.values()]
    assert times == sorted(times)
    assert begin - 1 < times[0] < begin + 60
    assert state.numpy().tolist() == [12.0]
    assert marks.take() == []


def test_a_single_rank_whose_step_xla_compiles_has_no_marks():
    assert StepTimeline(1, 1).step(train_step_of) is train_step_of


class Marks:
    solo, at_once = False, 1

    def __init__(self):
        self.rows = []

    def take(self):
        taken, self.rows = self.rows, []
        return taken


def test_spans_of_a_step_add_up_to_its_time():
    sent, marks = [], Marks()
    begin = time.time() + 3600  # later than the start of the epoch
    watched = Watched(marks, lambda *_: True, SpanRecorder("worker 0", sent.append), (0, 4), "report")
    assert watched.on_batch(0, {})
    first = {"ready hfdt.gradient.0": begin + 3.0, "added hfdt.gradient.0": begin + 4.0}
    second = {"ready hfdt.gradient.1": begin + 3.5, "added hfdt.gradient.1": begin + 6.0}
    marks.rows.append({"batch": begin + 1.0, **first, **second, "done": begin + 7.0})
    watched.finish()
    spans = [(s.thread, s.name, round(s.start - begin, 3), round(s.end - begin, 3)) for s in sent[0].spans.spans]
    assert (*spans[0][:2], spans[0][3]) == ("main", "input", 1.0)
    assert spans[1:] == [
        ("main", "forward and backward", 1.0, 3.5),
        ("main", "exchange", 3.5, 6.0),
        ("main", "update", 6.0, 7.0),
        ("gradient 0", ALL_REDUCE, 3.0, 4.0),
        ("gradient 1", ALL_REDUCE, 3.5, 6.0),
    ]
    assert {s.step for s in sent[0].spans.spans} == {5}


# -- NFDT ---------------------------------------------------------------------------------------------------------
class Shard:
    """A shard service that applies a push at once."""

    def __init__(self, job, workers, send, applier=None):
        self.applier, self.send = applier or job.applier, send

    def push(self, worker, number, gradient, session=None):
        return self.applier.push("rule", "shared", "mine", worker, gradient, 0)


class Applier:
    def push(self, *arguments):
        return arguments


def push_one(timeline):
    """A shard service that got one push and ended its epoch, its applier, and what it sent."""
    sent, applier, gradient = [], Applier(), WorkerGradient(())
    job = SimpleNamespace(applier=applier, shard=0, options=SimpleNamespace(timeline=timeline))
    shard = served(Shard, job, 1, sent.append)
    assert shard.push(3, 1, gradient) == ("rule", "shared", "mine", 3, gradient, 0)
    shard.send(Event(epoch_end=EpochEnd()))
    return gradient, shard.applier is applier, sent


def test_a_push_waits_in_the_queue_and_is_applied():
    gradient, _, (event, _) = push_one(timeline=True)
    queue, apply = event.spans.spans
    assert (queue.name, apply.name, queue.thread) == ("queue", "apply", "pushes of lane 3")
    assert gradient.arrived == queue.start <= queue.end == apply.start <= apply.end


def test_without_the_option_a_server_wraps_nothing():
    _, plain, sent = push_one(timeline=False)
    assert plain
    assert [event.WhichOneof("kind") for event in sent] == ["epoch_end"]
