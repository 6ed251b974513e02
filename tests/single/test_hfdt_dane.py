"""DANE and ADMM on quadratics whose numbers were computed by hand, and on networks in memory."""

import sys
from pathlib import Path

import keras
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))
from in_process import trained

from fdt.errors import UserError
from fdt.keras import named
from fdt.trainable import Trainable
from hfdt import algorithms
from hfdt.worker.rounds import RoundGroup, Rounds
from tests.in_process_comm import on_ranks

W0 = np.array([4.0, -2.0])


class Quadratic:
    """O_i(w) = w.H w / 2 - b.w, as a rule sees a rank's data (hfdt/algorithm.py, Shard), and its exact minimiser."""

    def __init__(self, hessian, b, w0):
        self.hessian, self.b, self.w0 = np.array(hessian, float), np.array(b, float), w0

    def gradient(self):
        return [self.hessian @ self.w0 - self.b]

    def curvature(self, direction):
        return [self.hessian @ np.asarray(direction[0])]

    def minimised(self, task):
        shifted = self.hessian + task.mu * np.eye(len(self.w0))
        return [np.linalg.solve(shifted, self.b + np.asarray(task.linear[0]) + task.mu * self.w0)]


def rounds(text, problems, count=1):
    """w after `count` rounds of a rule over quadratics (H, b), one a rank."""
    made = algorithms.make(text)

    def work(comm):
        group = RoundGroup(comm, tf.Variable([1, comm.size], dtype=tf.int64))
        w, state = [W0], made.init([W0])
        for _ in range(count):
            shard = Quadratic(*problems[comm.rank], np.asarray(w[0]))
            task, state = made.begin(state, w, shard, group)
            w, state = made.end(state, w, shard.minimised(task), group)
        return np.asarray(w[0])

    results = on_ranks(len(problems), work)
    for other in results[1:]:
        npt.assert_array_equal(other, results[0])
    return results[0]


def test_dane_with_one_worker_takes_newtons_step():
    # The least point of w.H w / 2 - b.w is H^-1 b: [[2, 1], [1, 3]]^-1 [1, 8] = [-1, 3].
    npt.assert_allclose(rounds("dane(eta=1, mu=0)", [([[2, 1], [1, 3]], [1, 8])]), [-1, 3])


def test_dane_worked_out_by_hand():
    # H_1 = 1, H_2 = 3 in the first direction, 1 and 1 in the second; b = 0; so grad O(w0) = (2 * 4, 1 * -2).
    # w = w0 - eta/2 (1/(1+mu) + 1/(3+mu)) * 8 = 4 - .5 * .5 * (1/2 + 1/4) * 8 = 2.5;
    # in the second direction -2 + .5 * .5 * (1/2 + 1/2) * 2 = -1.5.
    problems = [(np.diag([1, 1]), [0, 0]), (np.diag([3, 1]), [0, 0])]
    npt.assert_allclose(rounds("dane(eta=0.5, mu=1)", problems), [2.5, -1.5])


def test_danes_mu_is_how_far_the_workers_curvatures_are_apart():
    # The gradient g is (8, -2); H_i g - H g = (-8, 0) and (8, 0); h = (2 * 8 * 8 + 2 * 2) / 68 = 132 / 68;
    # q = 64 / (h^2 68) = 64 * 68 / 132^2 = 0.250; mu = h q / (1 + q) = 0.388.
    problems = [(np.diag([1, 1]), [0, 0]), (np.diag([3, 1]), [0, 0])]
    h, q = 132 / 68, 64 * 68 / 132**2
    mu = h * q / (1 + q)
    npt.assert_allclose(rounds('dane(solver="cg")', problems), rounds(f"dane(mu={mu})", problems))
    assert np.linalg.norm(rounds('dane(solver="cg")', problems, 12)) < 1e-3


@pytest.mark.parametrize("text", ["dane(mu=0.3)", 'dane(solver="cg")', "admm(rho=0.7)"])
def test_equal_shards_are_one(text):
    problem = ([[2, 1], [1, 3]], [1, 8])
    npt.assert_allclose(rounds(text, [problem] * 3, 4), rounds(text, [problem], 4), rtol=1e-12)


def test_admm_worked_out_by_hand():
    # H = 1 and 3, b = 0, rho = 1, in one direction: w_i = (rho z - u_i) / (H_i + rho).
    # Round 1, z = 4, u = 0: w = 2 and 1; z = 1.5; u = 0.5 and -0.5.
    # Round 2: w = (1.5 - 0.5) / 2 = 0.5 and (1.5 + 0.5) / 4 = 0.5; z = 0.5 + (0.5 - 0.5) / 2 = 0.5.
    problems = [(np.diag([1, 1]), [0, 0]), (np.diag([3, 1]), [0, 0])]
    npt.assert_allclose(rounds("admm(rho=1)", problems, 1)[0], 1.5)
    npt.assert_allclose(rounds("admm(rho=1)", problems, 2)[0], 0.5)


# -- over Keras --------------------------------------------------------------------------------------------------------
ROWS, BATCH = 70, 16
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(ROWS, 5)).astype("float32")
Y = (X @ np.array([1.0, -2.0, 0.5, 0.0, 3.0]) + 0.1 * GENERATOR.normal(size=ROWS)).astype("float32")


def linear():
    keras.utils.set_random_seed(3)
    made = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.02, momentum=0.5), "mse")
    return made


def least_squares():
    """The weights and bias that Keras's linear model tends to."""
    return np.linalg.lstsq(np.column_stack([X, np.ones(ROWS)]), Y, rcond=None)[0]


def flat(weights):
    return np.concatenate([w.ravel() for w in weights])


def test_conjugate_gradients_take_newtons_step_in_a_captured_model():
    weights, logs, notes, _ = trained('dane(mu=0.0, solver="cg")', 1, linear, X, Y, batch=BATCH, epochs=1)
    npt.assert_allclose(flat(weights), least_squares(), rtol=1e-3, atol=1e-4)
    loss = linear().evaluate(X, Y, verbose=0)
    npt.assert_allclose(logs[0]["loss"], loss, rtol=1e-5)  # of the weights that the round began with
    assert "solved by conjugate gradients" in notes[-1]


@pytest.mark.parametrize("text", ['dane(solver="cg")', "dane(local_epochs=2)", "admm(rho=0.5, local_epochs=2)"])
def test_workers_reach_the_whole_datas_least_point(text):
    epochs = 4 if "cg" in text else 12  # conjugate gradients solve a round's task exactly
    weights, logs, _, sent = trained(text, 3, linear, X, Y, batch=BATCH, epochs=epochs)
    npt.assert_allclose(flat(weights), least_squares(), atol=0.02)
    assert logs[-1]["loss"] < 0.02
    averages = 1 if text.startswith("admm") else 2
    assert sent == round(averages * 6 * 4 * 2 * 2 / 3)  # a ring of three passes a buffer on 4/3 times


def test_a_pass_that_only_looks_leaves_no_trace():
    """Dane of one worker at mu 0, eta 1 minimises its own loss: every trace of the first pass would show."""

    def make():
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Dense(4, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        made = keras.Sequential([keras.Input((5,)), *layers])
        made.compile("adam", "mse", metrics=["mae"])
        return made

    weights, logs, _, _ = trained("dane(mu=0.0, local_epochs=2)", 1, make, X, Y, batch=BATCH, epochs=1)
    alone = make()
    history = alone.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    for got, want in zip(weights, alone.get_weights(), strict=True):
        npt.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    npt.assert_allclose(logs[0]["mae"], history["mae"][-1], rtol=1e-5)


def test_workers_may_take_whole_batches_at_the_scripts_own_rate():
    """Of 64 rows in batches of 16, worker 0 trains on the first and the third, worker 1 on the others."""
    given = {"batch": "per-worker"}
    weights, _, notes, _ = trained("dane(mu=0.5)", 2, linear, X[:64], Y[:64], epochs=1, options=given)
    assert "trains once on its batches" in notes[-1]
    inputs = np.column_stack([X[:64], np.ones(64)])
    w0 = flat(linear().get_weights())

    def gradient(w, rows):
        return 2 * inputs[rows].T @ (inputs[rows] @ w - Y[rows]) / len(rows)

    batches = np.split(np.arange(64), 4)
    reached = []
    for mine in (batches[0::2], batches[1::2]):
        linear_term = gradient(w0, np.concatenate(mine)) - gradient(w0, np.arange(64))
        w, velocity = w0, 0.0 * w0
        for rows in mine:
            velocity = 0.5 * velocity - 0.02 * (gradient(w, rows) - linear_term + 0.5 * (w - w0))
            w = w + velocity
        reached.append(w)
    npt.assert_allclose(flat(weights), np.mean(reached, axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", ["dane", "admm"])
def test_an_optimizer_that_skips_gradients_is_refused(rule):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(UserError, match="a LossScaleOptimizer skips some"):
        Rounds(algorithms.make(rule), Trainable(named("keras"), model), None, [])
