"""Simulated pushes of several local steps: their time on a node that slows down, and their number."""

import csv
import json

import pytest

pytest.importorskip("keras")

from fdt.network import Cluster, NodeGroup, Slowdowns  # noqa: E402
from frontends.advise.pushes import PushRun  # noqa: E402
from nfdt.simulator import SimulationRecord  # noqa: E402
from nfdt.simulator.outcome import SimulationOutcome, print_table, summary, write_points, write_table  # noqa: E402
from tests.single.simulations import BATCH, ROWS, simulate  # noqa: E402

STEPS = -(-ROWS // BATCH)


@pytest.mark.parametrize("seed", range(3))
def test_local_steps_take_the_time_of_as_many_steps_on_a_node_that_slows_down(seed):
    cluster = Cluster((NodeGroup("n", 1, slowdowns=Slowdowns(0.3, 0.3, 10.0)),))
    one_by_one = simulate(cluster, seed=seed).epochs(2).session.now_s
    assert one_by_one > 2.3, "the node was slow for some of 22 steps of 0.1 s"
    for steps in (4, 11):
        simulated = simulate(cluster, seed=seed, rule=f"server_optimizer(local_steps={steps})").epochs(2)
        assert simulated.session.now_s == pytest.approx(one_by_one)


def test_the_advisors_clock_counts_local_steps_as_the_simulator_does():
    cluster = Cluster((NodeGroup("n", 1, slowdowns=Slowdowns(0.3, 0.3, 10.0)),))
    times = [
        PushRun(cluster, f"server_optimizer(local_steps={steps})", 11, 0, seed=4).seconds(epochs=2)
        for steps in (1, 4, 11)
    ]
    assert times == pytest.approx([times[0]] * 3)


def test_a_push_of_several_batches_is_one_push(tmp_path, capsys):
    outcomes = []
    for rule in ("asgd", "server_optimizer(local_steps=4)"):
        simulated = simulate(Cluster((NodeGroup("n", 2),)), rule=rule).epochs(2)
        SimulationRecord(2, [simulated.session.record]).write(tmp_path)
        outcomes.append(SimulationOutcome.of(tmp_path, [[{"loss": 1.0}] * 2], 1))
        assert outcomes[-1].total("pushes") == outcomes[-1].staleness.total() == len(simulated.pushes())
    asgd, local = outcomes
    assert [epoch["pushes"] for epoch in asgd.fits[0]["epochs"]] == [STEPS, STEPS]
    assert [epoch["pushes"] for epoch in local.fits[0]["epochs"]] == [3, 3], "11 batches: 4, 4 and 3"
    assert summary(asgd)["trained"] == summary(local)["trained"] == f"{2 * STEPS} steps, {2 * ROWS} samples"
    write_table(outcomes, tmp_path)
    assert [row["pushes"] for row in json.loads((tmp_path / "compare.json").read_text())] == [2 * STEPS, 6]
    print_table(outcomes)
    last = [line for line in capsys.readouterr().out.splitlines() if "server_optimizer" in line][0]
    assert last.split("│")[4].strip() == "6"
    write_points([local], tmp_path / "points.csv")
    with open(tmp_path / "points.csv", newline="") as file:
        assert [int(row["pushes"]) for row in csv.DictReader(file)] == [1, 2, 3, 4, 5, 6]
