"""`run --timeline` with two workers: the trace of every process, on one clock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trace_format import spans_of

pytestmark = pytest.mark.timeout(400)  # the first test of an engine waits for its run
SCRIPT = str(Path(__file__).parent / "scripts" / "timeline.py")
EPOCHS, STEPS = 2, 3  # as in the script


@pytest.fixture(scope="module", params=["hfdt", "nfdt"])
def traced(request, tmp_path_factory):
    """The engine's name, and its spans of one run."""
    file = tmp_path_factory.mktemp(request.param) / "trace.json"
    argv = [sys.executable, "-m", request.param, "run", "--timeline", str(file), "-np", "2", SCRIPT]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return request.param, spans_of(json.loads(file.read_text()))


def named(spans, name):
    return [span for span in spans if span[0] == name]


def test_every_step_of_every_worker_is_there(traced):
    engine, spans = traced
    if engine == "hfdt":
        for worker in ("worker 0", "worker 1"):
            for name in ("forward and backward", "exchange", "update"):
                steps = [(s[3]["epoch"], s[3]["step"]) for s in named(spans[worker, "main"], name)]
                assert steps == [(e, s) for e in range(1, EPOCHS + 1) for s in range(1, STEPS + 1)]
            assert len(named(spans[worker, "main"], "validation")) == EPOCHS
    else:
        lanes = [spans[worker, "lane 0"] for worker in ("worker 0", "worker 1")]
        assert sum(len(named(lane, "gradient")) for lane in lanes) == EPOCHS * STEPS
        pushes = [spans.get(("server 0", f"pushes of lane {lane}"), []) for lane in (0, 1)]
        assert sum(len(named(found, "apply")) for found in pushes) == EPOCHS * STEPS


def test_the_spans_of_a_step_leave_no_gap(traced):
    """So they add up to the step's time."""
    engine, spans = traced
    for worker in ("worker 0", "worker 1"):
        thread = spans[worker, "main" if engine == "hfdt" else "lane 0"]
        follows = [(a, b) for a, b in zip(thread, thread[1:], strict=False) if "step" in a[3] and "step" in b[3]]
        within = (
            [(a, b) for a, b in follows if a[3]["epoch"] == b[3]["epoch"]]
            if engine == "hfdt"
            else list(zip(thread, thread[1:], strict=False))
        )
        assert within
        assert [b[1] - a[2] for a, b in within] == [0] * len(within)


def test_the_processes_share_a_clock(traced):
    """A worker's epochs lie within the client's training; a transfer begins when all ranks have the gradient."""
    engine, spans = traced
    training = named(spans["client", "fit"], "training")
    assert len(training) == EPOCHS
    for worker in ("worker 0", "worker 1"):
        thread = spans[worker, "main" if engine == "hfdt" else "lane 0"]
        for span in named(thread, "update" if engine == "hfdt" else "gradient"):
            _, start, end, _ = training[span[3]["epoch"] - 1]
            assert start <= span[1] <= span[2] <= end
    if engine == "hfdt":
        buckets = [thread for process, thread in spans if process == "worker 0" and thread.startswith("gradient")]
        assert buckets
        for bucket in buckets:
            sent = [[s[1] for s in named(spans[w, bucket], "transfer")] for w in ("worker 0", "worker 1")]
            assert sent[0] == sent[1]
            assert len(sent[0]) == EPOCHS * STEPS


def test_a_loop_of_the_scripts_own_is_refused(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text("import tensorflow as tf\nwith tf.GradientTape() as tape:\n    pass\n")
    argv = [sys.executable, "-m", "hfdt", "run", "--timeline", "t.json", "--capture", "replica", str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "--timeline is for scripts that train by fit alone" in done.stderr
