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


def test_group_sync_by_drift_divides_the_rate_by_steps_that_the_weights_have_moved():
    """Two workers of unequal speed, which are grouped after a round: s^2 is the mean squared length of all updates."""
    rule = algorithms.make(f"{FOLDER / 'group_sync_drift'}.py(warm_up=1)")
    weights = [np.array([1.0, 2.0]), np.zeros(3)]
    shared, mine = rule.init(weights, 2)
    mine, lengths, before, scales = [mine, mine], [], weights, []
    rng = np.random.default_rng(3)
    for number, worker in enumerate([0, 1, 0, 1, 0, 0, 0, 0, 1, 0]):
        apart = np.sqrt(sum(np.sum((w - seen) ** 2) for w, seen in zip(weights, mine[worker], strict=True)))
        gradient = [rng.normal(size=2) + 1, rng.normal(size=3)]
        push = Push(worker, gradient, -1.0, 1.0, ETA, 0.0, before, 1.0 + 9 * worker)
        update, shared, mine[worker] = rule.push(shared, mine[worker], weights, push)
        if number:
            share = 1.0 if number == 1 else 0.5  # the first round is of both workers
            drift = apart / np.sqrt(np.mean(lengths)) if lengths else 0.0
            npt.assert_allclose(update.lr_scale, share / max(drift, 1.0))
            scales.append(update.lr_scale)
            before, weights = weights, [w - ETA * update.lr_scale * g for w, g in zip(weights, gradient, strict=True)]
            lengths.append(sum(np.sum((w - b) ** 2) for w, b in zip(weights, before, strict=True)))
        for each in [0, 1] if number == 1 else [worker]:
            sent, shared, mine[each] = rule.pull(shared, mine[each], weights, Hyper(each, ETA, 0.0))
            assert (sent is None) == (number == 0)
    assert min(scales) < 0.3  # several updates came between a pull and its push


def test_a_ramp_lets_twice_as_many_workers_compute_after_each_of_its_parts():
    made = algorithms.make(f"{FOLDER / 'concurrency_ramp'}.py(first=1, pushes=2, algorithm='asgd')")
    weights = [np.zeros(2)]
    shared, mine = made.init(weights, 4)

    def computes(worker):
        nonlocal shared
        sent, shared, _ = made.pull(shared, mine, weights, Hyper(worker, ETA, MU))
        return sent is not None

    def push(worker):
        nonlocal shared
        _, shared, _ = made.push(shared, mine, weights, Push(worker, [np.ones(2)], 0.0, 1.0, ETA, MU, weights))

    assert [computes(worker) for worker in range(4)] == [True, False, False, False]
    push(0)
    assert [computes(worker) for worker in (1, 0)] == [True, False]
    push(1)
    assert [computes(worker) for worker in range(4)] == [True, True, False, False]
    shared = made.leave(shared, mine, 0)
    assert [computes(worker) for worker in (2, 3)] == [True, False]
