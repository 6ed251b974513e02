"""`nfdt advise`: the time of a batch on a cluster, the order of algorithms, and answers that cannot be given."""

import contextlib
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from click.testing import CliRunner

from client_shim.inspect import time_step
from fdt.network.reading import parse_cluster
from frontends.advise import NoAnswer
from frontends.advise.command import _probe, as_values, fixed_part
from frontends.advise.pushes import PushRun
from frontends.advise.ranking import ScriptProbe, batch_s, rank
from frontends.advise.table import FILE, Place, Row, Table
from hfdt.cost.on_cluster import Load, exchanges
from nfdt.cli import main

PROBE = ScriptProbe(step_s=1.0, nbytes=1_000_000, slot_nbytes=1_000_000, batches=40)
FOUR = "step: 9 s\nnodes: [{count: 4}]"  # the file's step is not used
LINKED = "link: {bandwidth: 1 MB/s}\nserver: {bandwidth: unlimited}\nnodes: [{count: 4}]"


def cluster(text):
    return replace(parse_cluster(text).with_workers(None), step_s=1.0)


def row(engine, algorithm, batches, text=FOUR, name="four", task="cnn"):
    return Row(engine, algorithm, task, name, Place.of(cluster(text)), 1, batches, batches, batches)


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        ("asgd", 3 / 4),  # a pull and a push of a second each, and a step; four workers at once
        ("ssgd", 3 / 4),
        ("server_optimizer(local_steps=5)", 7 / 20),  # one pull and one push for five steps
    ],
)
def test_the_time_of_a_batch_under_nfdt(algorithm, seconds):
    assert batch_s(cluster(LINKED), "nfdt", algorithm, PROBE) == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        ("allreduce", 1 / 4 + 1.5),  # a quarter of the rows; a ring sends 2 (4 - 1) / 4 of a megabyte
        ("allreduce --batch per-worker", (1 + 1.5) / 4),
        ("local_sgd(local_steps=10)", 1 / 4 + 2 * 1.5 / 10),  # weights and slots, every ten batches
        ("dane --batch per-worker", (2 + 2 * 1.5 / 10) / 4),  # a gradient pass, a pass, two averages in ten batches
        ("admm --batch per-worker", (1 + 1.5 / 10) / 4),
    ],
)
def test_the_time_of_a_batch_under_hfdt(algorithm, seconds):
    assert batch_s(cluster(LINKED), "hfdt", algorithm, PROBE) == pytest.approx(seconds, rel=1e-3)


def test_a_round_of_an_epoch_has_all_of_its_batches():
    long = replace(PROBE, batches=4000)  # a round of 1000 batches for each worker
    assert batch_s(cluster(LINKED), "hfdt", "dane --batch per-worker", long) == pytest.approx((2 + 2 * 1.5 / 1000) / 4)


def test_listed_links_take_as_long_as_those_of_a_star():
    star = "server: {bandwidth: 1 MB/s}\nnodes: [{count: 2, link: {bandwidth: 1 MB/s}}]"
    listed = "nodes: [{count: 2}]\nswitches: [hub]\nlinks: [[node, hub, {bandwidth: 1 MB/s}], [hub, server]]"
    load = Load(4, 1, 1_000_000)
    one, other = (exchanges(cluster(text), "allreduce", load)[-1].seconds for text in (star, listed))
    assert one == other == pytest.approx(4 * (1 / 2 + 1))


def test_each_step_of_a_round_has_a_random_time_of_its_own():
    random = cluster("nodes: [{count: 4, speed: {distribution: gamma, mean: 1, shape: 1}}]")
    found = exchanges(random, "local_sgd(local_steps=16)", Load(16 * 400, 1, 1))
    rounds = np.random.default_rng(0).gamma(16, 1 / 4, (100_000, 4))  # 16 quarter steps; the slowest of four
    assert found[-1].seconds / 400 == pytest.approx(rounds.max(axis=1).mean(), rel=0.03)


def test_each_block_of_a_rank_has_a_random_time_of_its_own():
    random = cluster("nodes: [{count: 4, speed: {distribution: gamma, mean: 1, shape: 1}}]")
    found = exchanges(random, "coded(redundancy=2, placement='cyclic')", Load(2000, 1, 1))
    steps = np.random.default_rng(0).gamma(2, 1 / 4, (100_000, 4))  # two blocks of a quarter; the slowest of four
    assert found[-1].seconds / 2000 == pytest.approx(steps.max(axis=1).mean(), rel=0.03)


def test_the_part_of_a_step_that_does_not_shrink():
    assert fixed_part(64, 10.0, 8, 3.0) == pytest.approx(0.2)  # 2 s, and 8 s for 64 rows
    assert batch_s(cluster(FOUR), "hfdt", "allreduce", replace(PROBE, fixed=0.2)) == pytest.approx(0.4)


def test_micro_steps_take_the_fixed_part_once_for_each_part():
    """0.25 s of a batch of 1 s whatever its rows: four parts take 4 x 0.25 + 0.75 s."""
    described, probe = cluster(FOUR), replace(PROBE, fixed=0.25)
    parts, whole = (batch_s(described, "nfdt", f"ddc_asgd{given}", probe) for given in ("(micro_steps=4)", ""))
    assert parts / whole == pytest.approx(1.75, rel=1e-3)
    assert batch_s(described, "nfdt", "ddc_asgd(micro_steps=4)", PROBE) == pytest.approx(whole)


def test_coded_computes_the_fixed_part_once_for_each_block():
    found = exchanges(cluster(FOUR), "coded(redundancy=2, placement='cyclic')", Load(3, 1, 1, fixed=0.2))
    assert found[-1].seconds / 3 == pytest.approx(2 * (0.2 + 0.8 / 4))  # each rank has two of four blocks


def test_coded_takes_its_best_redundancy():
    shared = "medium: {bandwidth: 1 MB/s}\nmulticast: true\nnodes: [{count: 4}]"
    found = exchanges(cluster(shared), "coded(placement='groups')", Load(4, 1, 4_000_000))
    assert found[-1].seconds / 4 < batch_s(cluster(shared), "hfdt", "allreduce", replace(PROBE, nbytes=4_000_000))


def test_the_order_follows_batches_and_seconds():
    table = Table([row("nfdt", "asgd", 8.0), row("nfdt", "ssgd", 1.5), row("nfdt", "ssp", None)])
    found = rank(table, cluster(FOUR), PROBE)
    assert [c.algorithm for c in found.candidates] == ["allreduce", "coded(placement='cyclic')", "ssgd", "asgd"]
    assert [c.time for c in found.candidates][::3] == pytest.approx([1 / 4, 8 / 4])
    assert found.left_out == {"nfdt ssp": "did not reach the accuracy on the nearest clusters of the table"}
    assert found.candidates[2].command(["t.py"], [], 4) == "nfdt run --algorithm ssgd -np 4 t.py"


def test_a_refused_algorithm_is_left_out():
    table = Table([row("nfdt", "asgd", 0.1), row("nfdt", "ssgd", 1.5)])
    found = rank(table, cluster(FOUR), PROBE, {"nfdt asgd": "needs SGD"})
    assert "asgd" not in [c.algorithm for c in found.candidates] and found.left_out["nfdt asgd"] == "needs SGD"


def test_near_clusters_count_more():
    sixteen = "nodes: [{count: 16}]"
    table = Table([row("nfdt", "asgd", 2.0), row("nfdt", "asgd", 8.0, sixteen, "sixteen")])
    five, twelve = (table.batches("nfdt", "asgd", Place(np.log2(n), 0, 0)) for n in (5, 12))
    assert 2 < five.expected < 3 < 6 < twelve.expected < 8
    assert (five.least, five.most) == pytest.approx((2.5, 8.0))  # four times as many batches for four times the workers


def test_batches_grow_with_the_workers_beyond_the_table_and_never_shrink_below_it():
    """Four times as many workers needed four times as many batches; the other task started higher, and so it stays."""
    table = Table(
        [
            row("nfdt", "asgd", times * batches, f"nodes: [{{count: {count}}}]", str(count), task)
            for task, times in (("cnn", 1.0), ("text", 4.0))
            for count, batches in ((4, 2.0), (16, 8.0))
        ]
    )
    more, fewer = (table.batches("nfdt", "asgd", Place(np.log2(n), 0, 0)) for n in (32, 2))
    assert more.expected == pytest.approx(32) and (more.least, more.most) == pytest.approx((16, 64))
    assert fewer.expected > 4 and fewer.least == 2


def test_an_algorithm_that_did_not_arrive_on_the_nearest_cluster_is_left_out():
    """On twelve workers dana_dc was advised, which arrives with 8, and does not with 12 and 16."""
    sixteen, eight = "nodes: [{count: 16}]", "nodes: [{count: 8}]"
    known = [
        row("nfdt", "asgd", 2.0, eight, "eight"),
        row("nfdt", "asgd", 2.0, eight, "slow"),
        row("nfdt", "asgd", 2.0),
    ]
    table = Table([*known, row("nfdt", "asgd", None, sixteen, "sixteen")])
    found = {n: table.batches("nfdt", "asgd", Place(np.log2(n), 0, 0)) is not None for n in (4, 9, 12, 16)}
    assert found == {4: True, 9: True, 12: False, 16: False}


def test_an_algorithm_that_did_not_arrive_for_one_of_the_tasks_is_left_out():
    """admm was advised for text, whose mark it does not reach: it reaches those of cnn and resnet20."""
    known = [row("hfdt", "admm", 1.5, task=task) for task in ("cnn", "resnet20")]
    place = Place.of(cluster(FOUR))
    assert Table(known).batches("hfdt", "admm", place) is not None
    assert Table([*known, row("hfdt", "admm", None, task="text")]).batches("hfdt", "admm", place) is None


def test_a_cluster_outside_of_the_table_gets_no_answer():
    with pytest.raises(NoAnswer, match="no answer: the cluster is outside of the table; the nearest one is four"):
        rank(Table([row("nfdt", "asgd", 2.0)]), cluster("nodes: [{count: 9}]"), PROBE)


def test_slow_periods_are_as_long_as_they_lengthen_a_training():
    """A period that is 100 times slower holds few steps: a training takes 1.165 times as long, as Pace measures."""
    described = cluster("nodes: [{count: 8, slowdowns: {every: 60 s, last: 10 s, factor: 100}}]")
    assert 2 ** Place.of(described).fluctuating == pytest.approx(70 / 60.1)


def test_one_machine_is_advised_with_its_own_time_and_the_scripts_arguments():
    links = "link: {bandwidth: 1 kB/s}\nnodes: [{count: 4}]"
    found = rank(Table([row("nfdt", "ssgd", 4.0)]), cluster(links), PROBE)
    assert found.candidates[0].time > 1
    said = as_values(found, PROBE, (["my train.py"], ["--epochs", "3"]), 4)
    assert said["advice"] == "python 'my train.py' --epochs 3" and said["expected_time"]["expected"] == 1
    faster = rank(Table([row("nfdt", "ssgd", 4.0)]), cluster(FOUR), PROBE)
    said = as_values(faster, PROBE, (["-m", "t"], ["-np", "3"]), 4)
    assert said["advice"] == "hfdt run --algorithm allreduce -np 4 -m t -- -np 3"


@pytest.mark.parametrize(("engine", "algorithm"), [("hfdt", "allreduce"), ("hfdt", "local_sgd"), ("nfdt", "asgd")])
def test_the_time_of_a_batch_is_that_of_a_long_training(engine, algorithm):
    """Not that of 40 batches of 6 ms, within which no node changes. With two nodes, 4,000 batches see 40 periods."""
    text = "nodes: [{count: 2, slowdowns: {every: 2 s, last: 500 ms, factor: 6}}]"
    described, short = replace(cluster(text), step_s=0.006), replace(PROBE, step_s=0.006, nbytes=1, slot_nbytes=1)
    found = batch_s(described, engine, algorithm, replace(short, batches=1000))
    load = Load(8_000, 1, 1, 1)
    if engine == "hfdt":
        long = exchanges(described, algorithm, load)[-1].seconds / 8_000
    else:
        long = PushRun(described, algorithm, 8_000, 1, seed=1).seconds(1) / 8_000
    assert found == pytest.approx(long, rel=0.2)


def test_an_algorithm_that_the_table_lacks_makes_it_less_sure():
    found = rank(Table([row("nfdt", "ssgd", 4.0)]), cluster(FOUR), PROBE)
    assert found.sure == "medium" and "algorithms are not in the table: admm" in found.reasons[0]


def test_a_close_rival_makes_it_less_sure(monkeypatch):
    monkeypatch.setattr("frontends.advise.ranking._known", set)
    apart = rank(Table([row("nfdt", "ssgd", 4.0), row("nfdt", "ssgd", 4.0, task="text")]), cluster(FOUR), PROBE)
    close = rank(Table([row("nfdt", "ssgd", 1.02), row("nfdt", "ssgd", 1.02, task="text")]), cluster(FOUR), PROBE)
    assert (apart.sure, apart.reasons) == ("high", [])
    assert close.sure == "medium" and "may be as fast: nfdt ssgd" in close.reasons[0]


def test_the_kept_table_names_algorithms_that_exist():
    from hfdt import algorithms as hfdt
    from nfdt import algorithms as nfdt

    assert FILE.exists()
    for engine, algorithm in Table.read().algorithms:
        {"hfdt": hfdt, "nfdt": nfdt}[engine].make(algorithm.removesuffix(" --batch per-worker"))


@pytest.fixture
def script(tmp_path):
    (tmp_path / "cluster.yaml").write_text("nodes: [{count: 8}]")
    (tmp_path / "one.yaml").write_text("nodes: [{count: 1}]")
    (tmp_path / "many.yaml").write_text("nodes: [{count: 500}]")
    path = tmp_path / "train.py"
    path.write_text(
        "import keras, tensorflow as tf\nw, optimizer = tf.Variable(1.0), keras.optimizers.SGD()\nfor _ in range(3):\n"
        "    with tf.GradientTape() as tape:\n        loss = w * w\n"
        "    optimizer.apply_gradients([(tape.gradient(loss, w), w)])\n"
    )
    return path


@pytest.mark.parametrize(
    ("file", "code", "said"),
    [
        ("one.yaml", 2, "must describe two workers or more. Received: 1"),
        ("many.yaml", 1, "no answer: the cluster is outside of the table"),
        ("none.yaml", 2, "--cluster cannot be read"),
        ("cluster.yaml", 1, "has a training loop of its own, so no step can be measured"),
    ],
)
def test_no_answer_is_said(script, file, code, said):
    result = CliRunner().invoke(main, ["advise", "--cluster", str(script.parent / file), str(script)])
    assert (result.exit_code, said in result.output + result.stderr) == (code, True), result.output


def test_no_answer_as_json(script):
    given = ["advise", "--json", "--cluster", str(script.parent / "many.yaml"), str(script)]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 1 and json.loads(result.stdout)["advice"] is None


FIT = """
import keras, numpy as np
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile(keras.optimizers.Adam(), "mse")
model.fit(np.ones((64, 4)), np.ones((64, 2)), batch_size=16, verbose=0)
raise SystemExit("trained")
"""


FIXED = """
import keras, numpy as np
given = keras.Input(batch_shape=(32, 20))
hidden = keras.ops.reshape(keras.layers.Dense(16)(given), (32, 16))
model = keras.Model(given, keras.layers.Dense(1)(hidden))
model.compile("sgd", "mse")
model.fit(np.ones((128, 20)), np.ones((128, 1)), batch_size=BATCH, verbose=0)
"""
SCALED = """
import keras, numpy as np
keras.mixed_precision.set_global_policy("mixed_float16")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
keras.mixed_precision.set_global_policy("float32")
model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse", jit_compile=JIT)
model.fit(np.ones((64, 4)), np.ones((64, 2)), batch_size=16, verbose=0)
"""


def probed(tmp_path, source):
    (tmp_path / "train.py").write_text(source)
    return _probe(str(tmp_path / "train.py"), [], None, 4)


def test_a_model_that_fixes_its_rows_leaves_out_algorithms_that_divide_a_batch(tmp_path):
    probe, refused = probed(tmp_path, FIXED.replace("BATCH", "32"))
    assert probe.step_s > 0 and probe.fixed == 1.0
    assert refused["hfdt allreduce"].startswith("a step of 1/4 of a batch failed: ValueError: Exc")
    assert "hfdt coded(placement='cyclic')" in refused
    assert not [name for name in refused if name.startswith("nfdt") or name.endswith("per-worker")]


def test_a_step_that_fails_is_said_in_one_line(tmp_path):
    with pytest.raises(NoAnswer, match="^no answer: a step of the script failed: [^\n]*; use nfdt simulate --compare"):
        probed(tmp_path, FIXED.replace("BATCH", "16"))


def test_admm_and_dane_are_left_out_where_the_optimizer_scales_the_loss(tmp_path):
    _, refused = probed(tmp_path, SCALED.replace("JIT", "False"))
    names = {name.split()[1].partition("(")[0] for name in refused if name.startswith("hfdt")}
    assert names == {"admm", "dane"} and "LossScaleOptimizer" in refused["hfdt admm --batch per-worker"]


def test_one_timer_measures_the_step_of_fit(tmp_path, monkeypatch):
    seconds, timed = iter([4.0, 1.75]), []
    monkeypatch.setattr("hfdt.cost.step.fastest", lambda call: timed.append(call.func) or next(seconds))
    probe, _ = probed(tmp_path, SCALED.replace("JIT", "True"))
    assert (probe.step_s, probe.fixed) == (4.0, pytest.approx(fixed_part(16, 4.0, 4, 1.75)))
    assert [function._jit_compile for function in timed] == [True, True]


def test_inspect_times_the_step_as_fit_compiles_it(monkeypatch):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", jit_compile=True)
    monkeypatch.setattr("client_shim.inspect.fastest", lambda call: call.func._jit_compile)
    trainable = SimpleNamespace(restored=contextlib.nullcontext)
    assert time_step(model, trainable, None) is True


@pytest.mark.timeout(900)
def test_advice_for_a_script(tmp_path):
    """A real process, as a user starts it: the script is not trained, and the advice is a command."""
    import subprocess

    (tmp_path / "cluster.yaml").write_text("nodes: [{count: 8}]")
    (tmp_path / "train.py").write_text(FIT)
    argv = [sys.executable, "-m", "nfdt", "advise", "--json", "--cluster", "cluster.yaml", "train.py", "--of-its-own"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["advice"] in [c["command"] for c in found["candidates"]] + ["python train.py --of-its-own"]
    assert found["sure"] in ("high", "medium", "low") and 0 < found["probe"]["step_s"] < 60
    assert "nfdt dana_dc" not in [f"{c['engine']} {c['algorithm']}" for c in found["candidates"]]  # it needs SGD
