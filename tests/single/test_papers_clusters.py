"""benchmarks/papers/clusters.py: its net's gradient, and its times on a cluster that can be worked out by hand."""

import sys
from pathlib import Path

import numpy as np
import numpy.testing as npt
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # as benchmarks/papers/__main__.py does

from benchmarks.papers import clusters, compensation  # noqa: E402
from benchmarks.papers.experiment import Measured  # noqa: E402

TWO = "step: 1 s\nnodes:\n  - {name: fast, count: 1}\n  - {name: slow, count: 1, speed: 0.5}\n"


def test_the_gradient_is_that_of_the_loss():
    rng = np.random.default_rng(0)
    weights = [w.astype(float) for w in clusters.initial_weights(6, rng)]
    x, y = rng.random((4, 6)), np.array([1, 2, 3, 1])

    def loss():
        logits = clusters.hidden_and_logits(weights, x)[1]
        return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(4), y])

    for position, found in enumerate(clusters.gradient(weights, x, y)):
        at, before = (0,) * found.ndim, loss()
        weights[position][at] += 1e-6
        npt.assert_allclose(found[at], (loss() - before) / 1e-6, atol=1e-5)
        weights[position][at] -= 1e-6


@pytest.mark.parametrize(
    ("algorithm", "seconds", "idle", "pushes"),
    [("ssgd", 6.0, [0.5, 0.0], [3, 3]), ("asgd", 4.0, [0.0, 0.0], [4, 2])],
)
def test_shares_of_two_nodes(algorithm, seconds, idle, pushes):
    clock = clusters.timed(TWO, algorithm, 6, seed=0)
    npt.assert_allclose([clock.now_s, *clock.idle()], [seconds, *idle])
    assert clock.pushes == pushes


def test_a_rate_is_chosen_on_held_out_rows():
    def result(rate, held_out, test):
        figures = {"accuracy": held_out, "test_curve": [(1.0, 1.0, test)]}
        return Measured({"label": "a", "rate": rate}, figures)

    chosen = compensation.best([result(0.1, 80.0, 90.0), result(0.2, 81.0, 70.0)], "a")
    assert compensation.tested(chosen) == [70.0]


def test_a_best_rate_at_the_edge_is_said():
    def result(rate, held_out):
        return Measured({"label": "a", "rate": rate}, {"accuracy": held_out})

    found = [result(0.1, 80.0), result(0.2, 81.0)]
    assert compensation.at_edge(found) == " Best at the edge of the rates that were run: a at 0.2."
    assert compensation.at_edge([*found, result(0.4, 70.0)]) == ""
