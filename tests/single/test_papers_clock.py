"""The clocks and bounds of the experiments of sources D and E, on numbers that can be worked out by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from benchmarks.papers import (
    cluster_files,
    coded_nodes,
    coded_runs,
    convergence,
    lenet_time,
    redundancy,
    registry,
    server_star,
)
from benchmarks.papers.coded_runs import CELLS, MULTICAST
from benchmarks.papers.experiment import Measured
from benchmarks.papers.softmax import Softmax
from fdt.network import Cluster, NetworkLink, NodeGroup
from fdt.network.reading import parse_cluster


def test_a_server_receives_adds_and_sends_over_its_link():
    nodes = (NodeGroup("worker", 2), NodeGroup("server", 1, link=NetworkLink(1000.0)))
    sums = []

    def worker(comm):
        comm.work(3)
        sums.append(comm.add(np.full(125, comm.rank + 1.0)))

    # 3 s of work, 2 x 1,000 bytes to the server in 2 s, added in 0.5 s each, 2 s back
    seconds = server_star.on_star(Cluster(nodes, step_s=1.0), worker, bytes_a_step=2000.0)
    assert seconds == pytest.approx(3 + 2 + 1 + 2)
    assert [total.tolist() for total in sums] == [[3.0] * 125] * 2


@pytest.mark.parametrize(("ratio", "r", "saved"), [(1.0, 1, 0.0), (5.99, 2, 28.6), (11.99, 3, 46.1)])
def test_what_the_sources_formula_allows(ratio, r, saved):
    assert redundancy.bound(ratio) == (r, pytest.approx(saved, abs=0.1))


def test_the_curvature_of_softmax_regression_is_the_change_of_its_gradient():
    rng = np.random.default_rng(0)
    part = Softmax(rng.normal(size=(50, 4)), rng.integers(0, 10, 50))
    direction, step = rng.normal(size=part.w0.shape), 1e-2
    part.w0 = rng.normal(size=part.w0.shape)
    after, before = (part.value(part.w0 + sign * step * direction)[1] for sign in (1, -1))
    (found,) = part.curvature([direction])
    np.testing.assert_allclose(found, (after - before) / (2 * step), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(("load", "calculation"), [(None, 1.0), (redundancy.WHOLE, 8.0)])
def test_the_formula_starts_from_a_nodes_share_of_ssgd(load, calculation):
    named = {"load": load} if load else {}
    results = [Measured({"r": r, **named}, {"step_s": 16.0, "calculation_s": 8.0}) for r in (1, 2, 4)]
    assert redundancy.parts(results) == (calculation, 16.0 - calculation)
    expected = [r * calculation + (16.0 - calculation) / r for r in (1, 2, 4)]
    assert redundancy.formula(results) == expected
    assert redundancy.best_by_formula(results) == (4 if load is None else 1)


def test_the_mean_against_asgd_is_over_the_nodes_where_it_reached_the_mark():
    cell = CELLS[4]
    times = {2: 10.0, 4: 30.0}  # of asgd: 8 nodes did not reach the mark, 6 and 10 did not run

    def runs():
        for n in cell.nodes:
            yield Measured(cell.training("sgd", n), {"steps": 10})
            step = {"load": cell.load, "task": cell.task, "network": cell.network, "nodes": n}
            yield Measured({**step, "method": MULTICAST, "r": 1}, {"step_s": 2.0, "calculation_s": 1.0})
            if n in (2, 4, 8):
                yield Measured(cell.training("asgd", n), {"steps": 1, "seconds": times.get(n)})

    results = list(runs())
    asgd = coded_nodes.BEST[coded_nodes.ASYNCHRONOUS]
    share, nodes = coded_nodes.saved(results, cell, asgd)
    assert nodes == [2, 4]
    assert share == pytest.approx(100 * ((1 - 20 / 10) + (1 - 20 / 30)) / 2)
    assert coded_nodes.percent((share, nodes), cell, " than ASGD") == "33.3 % more than ASGD at 2, 4 nodes"
    rows = coded_nodes.table(results, coded_nodes.BEST, "", ".3g", [cell]).rows
    assert [row[2] for row in rows] == ["10", "30", "-", "not reached", "-"]


def test_synchronous_times_are_the_mean_over_the_seeds_that_all_reach_the_mark():
    cell, nodes = CELLS[0], 4
    taken = [Measured(cell.training("sgd", nodes, seed), {"steps": 10 + 20 * seed}) for seed in (0, 1)]
    assert coded_runs.steps_to_mark(taken, cell, nodes) == 20
    assert coded_runs.steps_to_mark(taken, cell, 8) == 20  # the batch is divided: the same steps
    assert coded_runs.steps_to_mark([*taken, Measured(cell.training("sgd", 4, 2), {"steps": None})], cell, 4) is None
    assert coded_runs.steps_to_mark([], cell, nodes) is None


def test_rounds_of_dane_and_admm_to_a_loss_that_both_reach():
    curves = {"least": [1.0], "dane(mu=0.1)": [3.0, 2.0, 1.0], "admm(rho=0.1)": [4.0, 2.1, 2.03]}
    results = [
        Measured({"model": "lenet5", "algorithm": name}, {"test_loss": curve, "held_out_loss": curve})
        for name, curve in curves.items()
    ]
    said = convergence.compared(results, "lenet5")
    assert "dane(mu=0.1) needs 2 rounds and admm(rho=0.1) 3 to a loss of 2.0706" in said
    assert "ADMM's clearly more rounds is reproduced" in said


def test_allreduce_shares_a_batch_and_averages_over_the_links():
    one = lenet_time.allreduce_s("mnist", "lenet5", 1, 10)
    assert one == pytest.approx(10 * lenet_time.STEP_S["mnist", "lenet5"])
    # two GPUs of one machine exchange at no cost
    assert lenet_time.allreduce_s("mnist", "lenet5", 2, 10) == pytest.approx(one / 2)
    assert lenet_time.allreduce_s("mnist", "lenet5", 4, 10) > one / 4


def test_all_experiments_with_a_described_cluster_state_their_files():
    stated = {name: list(cluster_files.of(name)) for name in registry.experiments()}
    assert {name for name, files in stated.items() if not files} == {"C5"}  # lines of scripts
    assert all(parse_cluster(text).nodes for files in stated.values() for _, text in files)
