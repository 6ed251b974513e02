"""The simulated clock: the same training as `nfdt run`, the same bits for a seed, times computed by hand."""

import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

keras = pytest.importorskip("keras")

from fdt.errors import UsageError, UserError  # noqa: E402
from fdt.job import BatchHooks, State  # noqa: E402
from fdt.network import Cluster, NetworkLink, NodeGroup, Slowdowns, Speed  # noqa: E402
from nfdt.cli import main  # noqa: E402
from nfdt.simulator import (  # noqa: E402
    SimulationRecord,  # noqa: E402
    command,
    session,
)
from nfdt.simulator.command import split_algorithms  # noqa: E402
from nfdt.simulator.outcome import SimulationOutcome, print_table, summary, write_report, write_table  # noqa: E402
from nfdt.simulator.workers import SharedBatches  # noqa: E402
from tests.pages import page_data  # noqa: E402
from tests.single.simulations import BATCH, ROWS, data, model, simulate  # noqa: E402

STEPS = -(-ROWS // BATCH)


def relative(a, b):
    return max(float(np.linalg.norm(p - q) / (np.linalg.norm(q) or 1)) for p, q in zip(a, b, strict=True))


def same_bits(a, b):
    return all(p.tobytes() == q.tobytes() for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "make", [lambda: keras.optimizers.SGD(0.05, momentum=0.9), lambda: keras.optimizers.Adam(0.01)]
)
def test_one_simulated_worker_trains_as_keras_does(make):
    alone, x, y = model(make()), *data()
    simulated = simulate(Cluster((NodeGroup("one", 1),)), source=model(make()), shuffle=False).epochs(2)
    history = alone.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    assert relative(simulated.weights, [np.asarray(w) for w in alone.get_weights()]) < 1e-5
    logs = [end.logs["loss"] for _, end in simulated.ends()]
    np.testing.assert_allclose(logs, history["loss"], rtol=1e-5)


def test_a_seed_decides_every_bit():
    cluster = Cluster((NodeGroup("n", 5, Speed(1.0, 10.0), Slowdowns(0.4, 0.2, 3.0)),), link=NetworkLink(50e3, 1e-3))
    first, again, other = (simulate(cluster, seed=seed).epochs(3) for seed in (4, 4, 5))
    assert first.calls == again.calls and same_bits(first.weights, again.weights)
    assert first.calls != other.calls and not same_bits(first.weights, other.weights)


def test_an_epoch_is_the_data_once():
    simulated = simulate().epochs(2)
    server, workers = simulated.ends()[1]
    assert (server.steps, server.samples, workers.steps, workers.samples) == (STEPS, ROWS, STEPS, ROWS)
    assert server.extra["staleness_max"] > 0
    assert server.extra["simulated_s"] == simulated.session.now_s
    assert sum(simulated.session.record.staleness.values()) == 2 * STEPS


def test_time_by_hand():
    """A step is: pull over the worker's link, then 0.1 s, then push; each way 100 kB/s and 5 ms."""
    link = NetworkLink(100e3, 5e-3)
    simulated = simulate(Cluster((NodeGroup("one", 1),), link=link, server=NetworkLink())).epochs(1)
    nbytes = (6 * 5 + 5 + 5 * 3 + 3) * 4  # of the weights
    pulled = simulated.ends()[0][1].bytes_received / STEPS
    assert simulated.ends()[0][1].bytes_sent == STEPS * nbytes
    assert nbytes < pulled < nbytes + 64, "weights, and the optimizer's scalars"
    expected = 5e-3 + STEPS * ((pulled + nbytes) / 100e3 + 0.1 + 2 * 5e-3)  # the first request takes its latency
    assert simulated.session.now_s == pytest.approx(expected, rel=1e-6)
    assert simulated.session.record.links["one up"] == STEPS * nbytes
    assert simulated.session.record.links["server up"] == STEPS * pulled


def test_a_barrier_waits_for_the_slowest():
    cluster = Cluster((NodeGroup("fast", 3), NodeGroup("slow", 1, Speed(0.25))))
    simulated = simulate(cluster, rule="ssgd").epochs(1)
    assert simulated.session.now_s == pytest.approx(0.4 + 0.4 + 0.1), "two whole rounds, and the fast three's last"
    assert {tau for *_, tau in simulated.pushes()} == {0}


def test_a_node_that_leaves():
    cluster = Cluster((NodeGroup("stays", 2), NodeGroup("leaves", 1, leaves_s=0.25)))
    for rule in ("asgd", "ssgd"):
        simulated = simulate(cluster, rule=rule).epochs(2)
        assert max(seconds for seconds, _, worker, _ in simulated.pushes() if worker == 2) < 0.25
        assert [server.steps for server, _ in simulated.ends()] == [STEPS, STEPS]


def test_a_node_that_joins():
    cluster = Cluster((NodeGroup("there", 2), NodeGroup("joins", 1, joins_s=0.25)))
    for rule in ("asgd", "ssgd", "malenia", "ringleader"):
        simulated = simulate(cluster, rule=rule).epochs(2)
        updates = [seconds for seconds, kind, *_ in simulated.calls if kind == "push"]
        assert min(updates) == pytest.approx(0.1), "the first update does not wait for it"
        own = [seconds for seconds, _, worker, _ in simulated.pushes() if worker == 2]
        assert own and min(own) == pytest.approx(0.35)
        assert min(seconds for seconds, *_ in simulated.pushes()) == pytest.approx(0.1), "nobody waits for it"
        assert [server.steps for server, _ in simulated.ends()] == [STEPS, STEPS]


def test_the_clock_goes_on_from_fit_to_fit():
    cluster = Cluster((NodeGroup("stays", 1), NodeGroup("leaves", 1, leaves_s=0.25)))
    simulated = simulate(cluster, begin_s=1.0).epochs(1)
    assert simulated.session.now_s == pytest.approx(1.0 + STEPS * 0.1)
    assert {worker for _, _, worker, _ in simulated.pushes()} == {0}


def test_nobody_left():
    with pytest.raises(UserError, match="all nodes of the cluster have left"):
        simulate(Cluster((NodeGroup("leaves", 2, leaves_s=0.15),))).epochs(1)


def test_lock_step():
    simulated = simulate(hooks=BatchHooks.LOGS)
    simulated.session.start_epoch(0, State())
    for _ in range(4):
        simulated.session.step(State())
    simulated.session.stop_epoch()
    steps = [event.step_end.step for event in simulated.events if event.HasField("step_end")]
    assert steps == [1, 2, 3, 4, 5]
    assert simulated.ends()[0][0].steps == 5
    metrics = simulated.job.blobs.get_arrays(simulated.ends()[0][0].metrics)
    assert float(metrics[1]) == 5 * BATCH, "what was not applied is not counted"


def test_lock_step_leaves_no_blobs_of_pushes_that_are_not_applied():
    simulated = simulate(hooks=BatchHooks.LOGS)
    blobs = lambda: {path.name for path in simulated.job.blobs.directory.iterdir() if path.is_file()}  # noqa: E731
    before = blobs()
    simulated.session.start_epoch(0, State())
    simulated.session.step(State())
    simulated.session.stop_epoch()
    (end, workers), steps = simulated.ends()[0], [e.step_end for e in simulated.events if e.HasField("step_end")]
    sent = [*(step.metrics for step in steps), end.metrics, workers.metrics, end.state.model, end.state.optimizer]
    assert len(steps) == 2 and blobs() - before == {ref.id for ref in sent}


def test_lock_step_counts_a_batch_when_its_push_arrives():
    far = NodeGroup("far", 2, Speed(1.0, 20.0), link=NetworkLink(latency_s=0.15))
    simulated = simulate(Cluster((NodeGroup("near", 2, Speed(1.0, 20.0)), far)), hooks=BatchHooks.LOGS)
    simulated.session.start_epoch(0, State())
    while not simulated.ends():
        simulated.session.step(State())
    ends = [event.step_end for event in simulated.events if event.HasField("step_end")]
    metrics = [simulated.job.blobs.get_arrays(end.metrics) for end in ends]
    assert [float(count) for _, count, *_ in metrics] == [BATCH * n for n in range(1, STEPS + 1)]
    losses = [total / count for total, count, *_ in metrics]
    np.testing.assert_allclose([end.logs["loss"] for end in ends], losses, rtol=1e-6)


class InOrder:
    """Three batches of a stream."""

    def reader(self, epoch):
        self.index = 0
        return self.read

    def read(self, index):
        assert index == self.index, "a stream is read in order"
        if index == 3:
            raise IndexError
        self.index += 1
        return f"batch {index}"


def test_a_stream_is_read_in_order_whoever_asks():
    batches = SharedBatches(InOrder())
    assert batches.take(4, 0, (1,)) == ["batch 1"]
    assert batches.take(5, 0, (0,)) == ["batch 0"]
    with pytest.raises(IndexError):
        batches.draw_ahead(0, 3)
    assert batches.take(4, 1, (0, 1)) == ["batch 0", "batch 1"]


def test_a_batch_of_a_stream_is_kept_until_its_push_is_answered():
    batches = SharedBatches(InOrder())
    batches.take(4, 0, (0, 1))
    batches.draw_ahead(0, 0)  # lane 4 has left, and another one is to compute its batch
    assert batches.take(5, 0, (0,)) == ["batch 0"]
    batches.drop(5)
    batches.drop(5)  # its next answer follows no push
    with pytest.raises(AssertionError):
        batches.take(5, 0, (0,))
    assert batches.take(5, 0, (1,)) == ["batch 1"]


class Stream:
    """A source's batches as of a generator: in order only, and of unknown number unless `steps` tells it."""

    def __init__(self, source, steps):
        self.source, self.steps, self.reader = source, steps, source.reader


@pytest.mark.parametrize("hooks", [BatchHooks.NONE, BatchHooks.LOGS])
def test_a_batch_whose_push_does_not_arrive_counts_once_in_the_metrics(hooks):
    leaves = [NodeGroup(f"leaves{at_s}", 1, leaves_s=at_s) for at_s in (0.8, 0.9, 1.0)]
    cluster = Cluster((NodeGroup("stays", 2), *leaves), link=NetworkLink(1e3, 0.2), server=NetworkLink())
    simulated = simulate(cluster, hooks=hooks)
    simulated.session.start_epoch(0, State())
    while not simulated.ends():
        simulated.session.step(State())
    server, workers = simulated.ends()[0]
    _, total, _ = simulated.job.blobs.get_arrays(workers.metrics)[:3]
    assert server.samples == ROWS and float(total) == ROWS, "the count of the mean loss"
    assert simulated.session.record.points[-1].epoch_samples == ROWS


@pytest.mark.parametrize("hooks", [BatchHooks.NONE, BatchHooks.LOGS])
@pytest.mark.parametrize("steps", [None, STEPS])
@pytest.mark.parametrize("rule", ["asgd", "ssgd", "server_optimizer(local_steps=2)"])
def test_a_stream_is_trained_once_also_if_workers_leave_while_their_pushes_travel(monkeypatch, rule, steps, hooks):
    opened = session.open_source
    monkeypatch.setattr(session, "open_source", lambda *args, **how: Stream(opened(*args, **how), steps))
    leaves = [NodeGroup(f"leaves{at_s}", 1, leaves_s=at_s) for at_s in (0.8, 0.9, 1.0, 1.8, 1.9)]
    cluster = Cluster((NodeGroup("stays", 2), *leaves), link=NetworkLink(1e3, 0.2), server=NetworkLink())
    simulated = simulate(cluster, rule=rule, hooks=hooks)
    for epoch in range(2):
        simulated.session.start_epoch(epoch, State())
        while len(simulated.ends()) <= epoch:
            simulated.session.step(State())
        assert len(simulated.session._batches._kept) <= 2 * 7, "batches do not pile up"
    assert [(server.steps, server.samples) for server, _ in simulated.ends()] == [(STEPS, ROWS)] * 2


def outcome(tmp_path, rule):
    simulated = simulate(rule=rule).epochs(2)
    record = SimulationRecord(4, [simulated.session.record])
    record.write(tmp_path)
    return SimulationOutcome.of(
        tmp_path, [[{"loss": 1.0, "accuracy": 0.5, "val_accuracy": 0.4 + i / 10} for i in range(2)]], 1
    )


def test_what_is_reported(tmp_path, capsys):
    outcomes = [outcome(tmp_path, rule) for rule in ("asgd", "ssgd")]
    outcomes[0].write(tmp_path / "one")
    assert SimulationOutcome.read(tmp_path / "one") == outcomes[0]
    assert (outcomes[0].metric, outcomes[0].final) == ("val_accuracy", 0.5)
    xs, _ = outcomes[0].validation_curve("samples", "accuracy")
    assert xs == [ROWS, 2 * ROWS]
    assert max(outcomes[0].training_curve("samples", "accuracy")[0]) == 2 * ROWS
    said = summary(outcomes[0])
    assert said["trained"] == f"{2 * STEPS} steps, {2 * ROWS} samples" and "simulator" in said["wall time"]
    write_report(outcomes, tmp_path)
    write_table(outcomes, tmp_path)
    print_table(outcomes)
    assert re.search(r"asgd +│ +0\.5000", capsys.readouterr().out)
    made = {file.name for file in tmp_path.iterdir()}
    assert made >= {"points.csv", "compare.json", "compare.csv", "report.html"}
    runs = page_data((tmp_path / "report.html").read_text())["runs"]
    assert [run["name"] for run in runs] == ["asgd", "ssgd"] and runs[1]["histogram"] == {"x": [0], "y": [1.0]}
    drawn = runs[0]["curves"]["accuracy"]
    assert drawn["validation"] == {"e": [1, 2], "t": drawn["validation"]["t"], "y": [0.4, 0.5]}
    assert drawn["train"]["e"][-1] == 2 and drawn["train"]["t"][-1] == round(outcomes[0].simulated_s, 3)


def test_a_rule_that_fails_does_not_cost_the_others(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "dana_dc").mkdir()
    (tmp_path / "dana_dc" / "run.json").write_text("of an earlier comparison")

    def run(argv):
        rule, directory = argv[argv.index("--algorithm") + 1], Path(argv[argv.index("--data") + 1])
        if rule != "dana_dc":
            outcome(tmp_path, rule).write(directory)
        return 3 if rule == "dana_dc" else 0

    monkeypatch.setattr(command, "_waited_for", run)
    argv = ["simulate", "--compare", "dana_dc,asgd,ssgd", "--report", str(tmp_path), str(tmp_path / "train.py")]
    ended = CliRunner().invoke(main, argv)
    assert ended.exit_code == 1
    assert "runs failed: exit code 3 under dana_dc" in ended.stderr.splitlines()[-1]
    assert [row["algorithm"] for row in json.loads((tmp_path / "compare.json").read_text())] == ["asgd", "ssgd"]
    assert "asgd" in ended.stdout and not (tmp_path / "dana_dc" / "run.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_comparison_that_is_ended_leaves_neither_its_directory_nor_a_run(tmp_path, monkeypatch, number, code):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "train.py").write_text("")
    started, signalled = [], []

    class Running(subprocess.Popen):
        def __init__(self, argv):
            super().__init__([sys.executable, "-c", "import time; time.sleep(600)"])
            started.append(self)

        def wait(self, timeout=None):
            if not signalled:
                signalled.append(True)
                signal.raise_signal(number)
            return super().wait(timeout)

    monkeypatch.setattr(command.subprocess, "Popen", Running)
    before = signal.signal(signal.SIGTERM, lambda *_: started[0].kill())  # where nobody takes it
    try:
        argv = ["simulate", "--compare", "asgd,ssgd", str(tmp_path / "train.py")]
        assert CliRunner().invoke(main, argv).exit_code == code
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [each.returncode for each in started] == [-signal.SIGTERM]
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_points_with_nothing_trained_between_them_are_one():
    trained = [(8, 0.5), (16, 0.75), (16, 0.75), (32, 0.75)]
    points = [
        {"epoch": 0, "pushes": n, "samples": n, "simulated_s": n, "epoch_samples": count, "logs": {"accuracy": value}}
        for n, (count, value) in enumerate(trained, 1)
    ]
    fit = {"epochs": [{"samples": 4, "simulated_s": 4}], "points": points, "staleness": {}}
    xs, ys = SimulationOutcome("ssgd", 0, 2, [fit], [[{"accuracy": 0.7}]]).training_curve("samples", "accuracy")
    assert xs == [1, 2, 4] and ys == [0.5, (0.5 + 1.0) / 2, (0.5 + 1.0 + 0.75) / 3]


def test_rules_are_split_outside_parentheses():
    assert split_algorithms("asgd, dc_asgd(lam=0.1,x=2),ssgd") == ["asgd", "dc_asgd(lam=0.1,x=2)", "ssgd"]
    nested = "server_optimizer(optimizer=sgd, learning_rate=CosineDecay(a=1, b=[2, 3]), sync=true)"
    assert split_algorithms(f"asgd,{nested}") == ["asgd", nested]
    with pytest.raises(UsageError, match="two algorithms or more"):
        split_algorithms("asgd")


def test_more_workers_than_batches():
    simulated = simulate(Cluster((NodeGroup("n", 1000, Speed(1.0, 50.0)),))).epochs(2)
    assert [server.steps for server, _ in simulated.ends()] == [STEPS, STEPS]
