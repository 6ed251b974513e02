"""What a run would cost: the arithmetic, activations of traced graphs, and `hfdt inspect` on real ranks."""

import re
from types import SimpleNamespace

import pytest

from client_shim.job import CapturedFit
from fdt.errors import CaptureError
from fdt.job import FeedData, FitArguments, JobSpec
from fdt.report import JobSummary
from fdt.rpc.session_pb2 import EpochEnd, WorkerShare
from hfdt.cost import report
from hfdt.cost.estimate import HALF, TWICE, Cost, Measured, ModelBytes, StepCurve, TracedStep
from hfdt.cost.ranks import calmest

MB = 1_000_000
CURVE = StepCurve([TracedStep(64, 640, "", 1.0), TracedStep(8, 80, "", 0.3)])  # 10 bytes a row; 12.5 ms a row and 0.2 s
RUNS = {1: Measured(1, 0.6, 0.0, 900 * MB), 2: Measured(2, 0.5, 0.1, 800 * MB)}
COST = Cost(ModelBytes(MB, MB, 2 * MB), RUNS, CURVE, {"fp16": [MB // 2]}, Measured(2, 0.48, 0.1, 799 * MB))


def test_a_measured_number_of_ranks_is_what_was_measured():
    found = COST.at(2)
    assert (found.memory, found.step_s, found.measured) == (800 * MB, 0.5, True)
    assert found.activations == pytest.approx(320)
    assert found.linked_s["1 Gbit/s"] == pytest.approx(0.6 * 0.6 + MB / 125e6)  # 32 rows: 0.6 of the 64 rows' time


def test_four_ranks_compute_a_quarter_of_the_batch_and_exchange_as_a_ring_does():
    found = COST.at(4)
    assert found.measured is False
    assert found.memory == 800 * MB - 160
    assert found.step_s == pytest.approx(0.4 * (0.4 / 0.6) + 0.1 * 1.5)  # 2 (n - 1) / n: 1.5 instead of 1


def test_options_change_what_they_are_for():
    assert COST.memory_changes(2) == pytest.approx({"--shard-optimizer": -MB, HALF: -160})
    assert COST.time_changes(2) == pytest.approx(
        {"--shard-optimizer": -0.02, TWICE: (0.4 * 1.0 / 0.6 - 0.1) / 2 - 0.4, "--compress fp16": -0.05}
    )
    assert COST.time_changes(2, 1e6)["--compress fp16"] == pytest.approx(-0.5)
    whole = Cost(COST.of, RUNS, CURVE, {})
    assert list(whole.memory_changes(2)) == [HALF]
    assert list(whole.time_changes(2)) == [TWICE]


def test_without_a_second_core_no_exchange_is_known():
    found = Cost(COST.of, {1: RUNS[1]}, CURVE, {}).at(2)
    assert found.step_s is None
    assert found.linked_s["10 Gbit/s"] == pytest.approx(0.36 + MB / 1.25e9)


def test_unknown_activations_leave_unmeasured_memory_unknown():
    curve = StepCurve([TracedStep(64, None, "lstm is a loop", 1.0), TracedStep(8, None, "lstm is a loop", 0.3)])
    cost = Cost(COST.of, RUNS, curve, {})
    assert (cost.at(2).memory, cost.at(4).memory) == (800 * MB, None)
    lines = [*report.table(cost, 2), *report.parts(cost, JobSummary("j"))]
    assert re.search(r"^ +4 +unknown +unknown +", "\n".join(lines), re.MULTILINE)
    assert "activations are not known: lstm is a loop" in "\n".join(lines)


def test_the_report_names_what_changes_most_first():
    memory, here, *_ = report.advice(COST, 2)
    assert memory == "options:    at -np 2, memory: no option changes it by more than 1%"  # 1 of 800 MB
    assert here.strip().startswith(
        "a step on this machine: twice the batch size, for as many samples, -117 ms (-23%), "
    )
    assert here.endswith("--compress fp16 -50 ms (-10%), --shard-optimizer -20 ms (-4%)")


def test_the_calmest_epoch_but_the_first_counts():
    def end(seconds, waits):
        shares = [WorkerShare(rank=i, seconds=seconds, busy_seconds=seconds - w) for i, w in enumerate(waits)]
        return EpochEnd(steps=10, seconds=seconds, workers=shares)

    found = calmest(2, [end(1.0, [0, 0]), end(4.0, [1, 1]), end(2.0, [0.5, 0.1])], 7)
    assert (found.step_s, found.memory, found.spread) == (0.2, 7, 2.0)
    assert found.waited_s == pytest.approx(0.01)
    with pytest.raises(CaptureError, match="no step"):
        calmest(2, [], 7)


def test_json_has_the_estimates_of_the_table():
    found = report.values(COST, 3)
    assert [each["workers"] for each in found["estimates"]] == [1, 2, 3, 4, 8]
    assert found["estimates"][1]["step_s"] == 0.5 and found["estimates"][1]["measured"]
    assert found["model_bytes"] == {"weights": MB, "gradients": MB, "slots": 2 * MB}
    assert [each["workers"] for each in found["measured"]] == [1, 2]


def test_a_busy_machine_is_named():
    busy = Cost(COST.of, {1: RUNS[1], 2: Measured(2, 0.5, 0.1, 800 * MB, 1.8)}, CURVE, {})
    (line,) = report.doubts(busy, hooks=False)
    assert line.startswith("note:       half the epochs of a short run were slower by a factor of 1.8: ")
    assert report.doubts(COST, hooks=False) == []
    assert report.doubts(COST, hooks=True) == [
        "note:       callbacks that read every step make the real run slower than this"
    ]


def lines_for(job, *, eager=False):
    call = SimpleNamespace(model=SimpleNamespace(run_eagerly=eager), flavor=None)
    return report.reported(CapturedFit(None, call, None, None, job), JobSummary("j"), {}).lines


def test_what_cannot_be_estimated_is_said():
    feed = JobSpec("j", None, None, FeedData("f", -1), FitArguments())
    assert lines_for(feed) == [
        "cost:       not estimated: the script's process reads the data, so no step can be measured here"
    ]
    (eager,) = lines_for(JobSpec("j", None, None, None, FitArguments()), eager=True)
    assert eager.endswith("the model runs eagerly (run_eagerly), so its step cannot be traced")


def activations(train, *specs):
    import tensorflow as tf

    from hfdt.cost.step import _activations

    return _activations(tf.function(train).get_concrete_function(*specs).graph)


def test_activations_are_what_lives_until_the_backward_pass():
    import tensorflow as tf

    weight = tf.Variable(tf.ones([3, 5]))

    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.exp(tf.reshape(tf.matmul(x, weight), [-1])))
        weight.assign_sub(weight * tape.gradient(loss, weight))

    # matmul's result (4 x 5) and exp's (20), of which the reshape is a view; the update's product is not of this pass
    assert activations(train, tf.TensorSpec([4, 3])) == (2 * 20 * 4, "")
    found, why = activations(train, tf.TensorSpec([None, 3]))
    assert found is None and why.endswith("has no fixed shape: (None, 5)")
    assert activations(lambda x: x + 1.0, tf.TensorSpec([4])) == (None, "the step has no gradient tape")


def test_a_loop_keeps_tensors_of_its_own():
    import tensorflow as tf

    weight = tf.Variable(1.0)

    def train(x):
        with tf.GradientTape() as tape:
            y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * weight), [0, x])[1]
        weight.assign_sub(tape.gradient(y, weight))

    found, why = activations(train, tf.TensorSpec([]))
    assert found is None and "which keeps tensors of its own" in why


SCRIPT = """
import keras, numpy as np
model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(400), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.ones((64, 20), "float32"), np.ones((64, 1), "float32"), batch_size=16, epochs=2)
"""


def test_inspect_prints_memory_and_time_of_real_ranks(tmp_path, monkeypatch, capfd):
    from hfdt.cli import main
    from hfdt.cost import ranks

    monkeypatch.setattr(ranks, "EPOCHS", 1)
    monkeypatch.setattr(report, "cores", lambda: 2)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(script), "-np", "3"])
    out, err = capfd.readouterr()
    assert ended.value.code == 0, err
    assert "measuring the cost: short runs of -np 1, 2 (--no-cost leaves them out)" in err
    row = r"^(?:cost:)? +(\d) +([\d.]+ [GM]B) +([\d.]+ kB) +[\d.e+]+ ms( \*)? +[\d.e+]+ ms +[\d.e+]+ ms$"
    rows = re.findall(row, out, re.MULTILINE)
    assert [(n, star) for n, _, _, star in rows] == [("1", " *"), ("2", " *"), ("3", ""), ("4", ""), ("8", "")]
    assert "weights 35.2 kB, slots 70.4 kB, gradients 35.2 kB, activations" in out
    assert "options:    at -np 3, memory: " in out
