"""The clocks and bounds of the experiments of sources D and E, on numbers that can be worked out by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from benchmarks.papers import redundancy, server_star
from benchmarks.papers.softmax import Softmax
from fdt.network import Cluster, NetworkLink, NodeGroup


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
