"""Batches that an eager step slices by hand: a rank's part inside the step, whole arrays everywhere else."""

import ast

import numpy as np
import pytest
import tensorflow as tf

from client_shim.replica.rewriting import Hands, rewrite, rewritten
from fdt.errors import CaptureError
from fdt.patches import Patch, patched
from hfdt.replica import kinds
from hfdt.replica.by_hand import ByHand
from hfdt.replica.constants import Rows
from hfdt.replica.places import Places
from hfdt.replica.probe import Trials
from hfdt.replica.values import take_gradient
from hfdt.step import Terms


class Comm:
    """The second of two ranks; the first gives zeros."""

    rank, size = 1, 2

    def sum(self, tensors, name):
        return tensors


class Optimizer:
    """Says what it is given, and that gradients were applied."""

    def __init__(self, places, seen):
        self._places, self._seen = places, seen

    def apply_gradients(self, pairs):
        self._seen.append([gradient.shape[0] for gradient, _ in pairs])
        self._places._current().applies += 1


@pytest.fixture
def run(tmp_path):
    """Runs a script; what it has put into `seen`, and the shares that were counted."""

    def running(code):
        path = tmp_path / "script.py"
        path.write_text(code)
        places, seen, shares, hands = Places(Terms(Comm(), own_step=False)), [], [], Hands()
        rows = Rows(places, Trials(), Comm.rank, Comm.size)
        hands.rank = ByHand(places, rows, Comm.rank, Comm.size, shares.append)
        names = {"tf": tf, "np": np, "seen": seen, "weight": tf.Variable([[1.0]] * 5)}
        names["optimizer"] = Optimizer(places, seen)
        patches = [Patch(tf.GradientTape, "gradient", take_gradient)]
        with rewritten(hands), places.installed(), kinds.followed(), patched(patches):
            exec(compile(rewrite(ast.parse(code)), str(path), "exec"), names)
            assert not places.divided()
        return seen, shares

    return running


SLICED = """
x = np.arange(45.0, dtype="float32").reshape(9, 5)

def train_step(batch, labels):
    with tf.GradientTape() as tape:
        predicted = batch @ weight
        loss = tf.reduce_sum(predicted - labels)
    seen.append((batch.shape[0], labels[0].item()))
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    return predicted

for i in range(0, 9, 5):
    batch = x[i:i + 5]
    predicted = train_step(batch, batch[:, :1])
    seen.append((len(batch), predicted.shape[0], float(predicted[0, 0])))
"""
WHOLE = """
x, y = tf.ones([5, 5]), np.ones((5, 1), "float32")
others = np.zeros(5)
for epoch in range(2):
    seen.append(len(x))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(x @ weight - y)
    gradients = [tape.gradient(loss, weight)]
    optimizer.apply_gradients(list(zip(gradients, [weight])))
    seen.append((x.shape[0], y.shape[0], len(others)))
seen.append((len(x), len(y)))
"""


def test_a_step_function_is_given_parts_and_returns_what_is_whole(run):
    seen, shares = run(SLICED)
    assert seen == [(3, 0.0), [5], (5, 5, 0.0), (2, 25.0), [5], (4, 4, 0.0)]  # the first rank's rows are zeros here
    assert shares == [(3, 5), (2, 4)]


def test_an_inline_step_on_all_rows_divides_what_it_reads_but_no_gradients(run):
    seen, shares = run(WHOLE)
    assert seen == [5, [5], (3, 3, 5), 5, [5], (3, 3, 5), (5, 5)]
    assert shares == [(3, 5), (3, 5)]


def test_what_does_not_fit_its_part_is_named(run):
    with pytest.raises(CaptureError, match=r"part of 5 rows, at .*script.py:\d"):
        run(WHOLE.replace("x @ weight", "tf.transpose(x) @ tf.ones([5, 1])"))


def test_a_loop_that_does_not_train_is_left_alone(run):
    seen, shares = run(WHOLE.replace("optimizer.apply_gradients", "str"))
    assert seen == [5, (5, 5, 5), 5, (5, 5, 5), (5, 5)] and shares == []
