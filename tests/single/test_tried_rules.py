"""Algorithms of papers that lost to ddc_asgd, in benchmarks/algorithms: their arithmetic, on NumPy."""

from pathlib import Path

import numpy as np
import numpy.testing as npt
import pytest

from nfdt import algorithms
from nfdt.algorithm import Hyper, Push
from nfdt.tree import zeros

FOLDER = Path(__file__).parents[2] / "benchmarks" / "algorithms"
MOMENTA = ["ordered_momentum", "delayed_nesterov", "spike_compensation"]
MU, ETA = 0.5, 0.1


class Server:
    """The weights, and an algorithm whose direction is subtracted from them at rate ETA."""

    def __init__(self, name, workers):
        self.rule, self.weights = algorithms.make(f"{FOLDER / name}.py"), [np.zeros(2)]
        self.shared, mine = self.rule.init(self.weights, workers)
        self.mine, self.pulled, self.updates = [mine] * workers, [0] * workers, 0

    def pull(self, worker):
        hyper = Hyper(worker, ETA, MU)
        sent, self.shared, self.mine[worker] = self.rule.pull(self.shared, self.mine[worker], self.weights, hyper)
        self.pulled[worker] = self.updates
        return sent[0]

    def push(self, worker, gradient):
        tau = float(self.updates - self.pulled[worker])
        push = Push(worker, [gradient], tau, 1.0, ETA, MU, zeros(self.weights))
        update, self.shared, self.mine[worker] = self.rule.push(self.shared, self.mine[worker], self.weights, push)
        assert update.momentum == "algorithm" and self.rule.own_momentum(self.shared)
        self.weights = [w - ETA * d for w, d in zip(self.weights, update.gradient, strict=True)]
        self.updates += 1


@pytest.mark.parametrize("name", MOMENTA)
def test_one_worker_is_momentum(name):
    server, v, expected = Server(name, 1), np.zeros(2), np.zeros(2)
    for gradient in np.random.default_rng(1).normal(size=(9, 2)):
        server.pull(0)
        server.push(0, gradient)
        v = MU * v + gradient
        expected = expected - ETA * (gradient + MU * v if name == "delayed_nesterov" else v)
        npt.assert_allclose(server.weights[0], expected)


@pytest.mark.parametrize("name", MOMENTA)
@pytest.mark.parametrize("turn", [3, 4, 5])
def test_the_whole_effect_of_a_late_gradient_is_that_of_momentum(name, turn):
    """A gradient that two others precede, and zeros follow, moves the weights by eta g / (1 - mu)."""
    server, gradient = Server(name, 3), np.array([1.0, -2.0])
    for worker in range(3):
        server.pull(worker)
    for number in range(300):
        worker = number % 3
        server.push(worker, gradient if number == turn else np.zeros(2))
        server.pull(worker)
    npt.assert_allclose(server.weights[0], -ETA * gradient / (1 - MU), rtol=1e-9)


def test_predicted_weights_are_those_that_the_velocity_leads_to():
    server = Server("spike_compensation", 3)
    server.rule = algorithms.make(f"{FOLDER / 'spike_compensation'}.py(prediction=True)")
    server.pull(0)
    server.push(0, np.array([1.0, -2.0]))
    npt.assert_allclose(server.pull(0), server.weights[0] - 2 * ETA * np.array([1.0, -2.0]))


def test_a_clipped_gradient_has_the_largest_norm():
    for gradient, applied in (([3.0, 4.0], [0.6, 0.8]), ([0.3, 0.4], [0.3, 0.4])):
        rule = algorithms.make(f"{FOLDER / 'clipped'}.py(norm=1.0, algorithm='asgd')")
        weights = [np.zeros(2)]
        push = Push(0, [np.array(gradient)], 0.0, 1.0, ETA, MU, weights)
        update, *_ = rule.push(*rule.init(weights, 2), weights, push)
        npt.assert_allclose(update.gradient[0], applied)
