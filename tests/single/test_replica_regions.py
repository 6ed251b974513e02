"""Eager steps that NFDT's workers take in turns: the skipped code, and the values that the script then reads."""

import ast
import re

import numpy as np
import pytest
import tensorflow as tf

from client_shim.replica.rewriting import rewritten
from client_shim.replica.skippable import _Order
from client_shim.replica.skippable_regions import RegionHooks as Hooks
from nfdt.replica.round_robin import RoundRobin
from nfdt.replica.skippable_regions import SkippableRegions

RETURNED = """
def gradients(x):
    with tf.GradientTape(persistent=True) as tape:
        y = f(x)
    a = tape.gradient(y, x)
    return a, tape.jacobian(y, x)
"""
ELSEWHERE = """
def forward(x):
    with tf.GradientTape() as tape:
        y = f(x)
    return y, tape
"""


def text(code):
    """Rewritten; regions have the number 0."""
    made = ast.unparse(Hooks().rewrite(ast.parse(code))).replace("__fdt_hands__.", "")
    return re.sub(r"(runs_here|keep|restored|last|give)\(\d+", r"\1(0", made)


def test_a_region_ends_with_the_last_gradient_and_its_function_returns_what_it_did():
    assert text(RETURNED).splitlines() == [
        "def gradients(x):",
        "    if runs_here(0, locals(), ('f', 'tf', 'x'), lambda: ()):",
        "        with step(), tf.GradientTape(persistent=True) as tape:",
        "            y = f(local(x))",
        "        a = array(tape).gradient(local(y), local(x))",
        "        return give(0, replicated((local(a), array(tape).jacobian(local(y), local(x)))))",
        "    else:",
        "        return last(0)",
        "    done()",
    ]


def test_a_loss_that_the_optimizer_calls_may_be_left_out():
    code = "for x in ds:\n    optimizer.minimize(lambda: f(x), weights)\n    scipy.optimize.minimize(f, x)"
    assert text(code).splitlines()[:4] == [
        "for x in ds:",
        "    if runs_here(0, locals(), ('optimizer', 'weights'), lambda: ()):",
        "        optimizer.minimize(lambda: f(x), weights)",
        "        keep(0, locals(), ())",
    ]
    assert text(code).count("runs_here(") == 1


def test_a_comprehension_is_a_loop_that_ends():
    assert text("losses = [step(x) for x in ds]").splitlines()[1] == "left(0)"


@pytest.mark.parametrize("code", [ELSEWHERE, RETURNED.replace("    a =", "    if not y:\n        return\n    a =")])
def test_a_tape_that_cannot_be_left_out_is_not(code):
    assert "runs_here(" not in text(code)


class Optimizer:
    """As the patched optimizers of a rank: they count."""

    def __init__(self, turns, given):
        self._turns, self._given = turns, given

    def apply_gradients(self, pairs):
        self._turns.applied += 1
        if self._turns.now() == "mine":
            self._given.append([round(float(gradient), 1) for gradient, _ in pairs])


@pytest.fixture
def run(tmp_path):
    """Runs a script as worker 1 of 2: what was applied, the samples that were counted, what it has put into `seen`."""

    def running(code):
        path = tmp_path / "script.py"
        path.write_text(code)
        applied, counted, seen, meetings = [], [], [], []
        turns = RoundRobin(1, 2, lambda: None, counted.append)
        hooks = Hooks()
        hooks.rank = SkippableRegions(turns, counted.append, lambda: meetings.append(len(seen)))
        names = {"tf": tf, "np": np, "seen": seen, "weight": tf.Variable(1.0), "optimizer": Optimizer(turns, applied)}
        with rewritten(hooks):
            exec(compile(hooks.rewrite(ast.parse(code)), str(path), "exec"), names)
        return applied, counted, seen, meetings

    return running


INLINE = """
x = np.arange(7, dtype="float32")
for i in range(0, 7, 2):
    batch = x[i:i + 2]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(batch * weight)
    gradients = tape.gradient(loss, [weight])
    optimizer.apply_gradients(zip(gradients, [weight]))
    seen.append(float(loss))
"""
ACCUMULATED = """
def step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(batch * weight)
    return loss, tape.gradient(loss, weight)

total = 0
for i in range(8):
    loss, gradient = step(tf.constant([float(i)]))
    total = total + gradient
    if i % 2:
        optimizer.apply_gradients([(total, weight)])
        total = 0
"""


def test_a_worker_takes_every_other_step_and_sees_its_own_last_one_between(run):
    applied, counted, seen, meetings = run(INLINE)
    assert applied == [[5.0], [6.0]] and counted == [2, 1]
    assert seen == [1.0, 5.0, 5.0, 6.0], "the first is computed, though not applied: the script may read it"
    assert meetings == [4], "after the loop"


def test_micro_batches_before_one_update_are_one_workers(run):
    applied, counted, _, _ = run(ACCUMULATED)
    assert applied == [[5.0], [13.0]], "2 + 3, 6 + 7"
    assert counted == [1, 1, 1, 1]


def test_a_step_of_two_tapes_is_counted_once(run):
    again = "".join(INLINE.splitlines(keepends=True)[4:8])
    applied, counted, _, _ = run(INLINE + again)
    assert applied == [[5.0], [5.0], [6.0], [6.0]] and counted == [2, 1]


def test_a_loop_that_does_not_train_runs_whole(run):
    applied, counted, seen, meetings = run(INLINE.replace("optimizer.apply_gradients", "str"))
    assert seen == [1.0, 5.0, 9.0, 6.0] and (applied, counted, meetings) == ([], [], [])


STEP = """
x = np.arange(7, dtype="float32")
total, history, table = 0.0, [], np.zeros(4)
for i in range(0, 7, 2):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(x[i:min(i + 2, 7)] * weight)
        rows = x[i:i + 2] * weight
    {more}
    gradients = tape.gradient(loss, [weight])
    optimizer.apply_gradients(zip(gradients, [weight]))
    seen.append({seen})
"""


@pytest.mark.parametrize(
    ("more", "shown", "expected"),
    [
        ("total += float(loss)", "total", [1.0, 6.0, 15.0, 21.0]),
        ("total = total + float(loss)", "total", [1.0, 6.0, 15.0, 21.0]),
        ("history.append(float(loss))", "len(history)", [1, 2, 3, 4]),
        ("table[i // 2] = float(loss)", "int((table > 0).sum())", [1, 2, 3, 4]),
        ("np.random.random()", "float(loss)", [1.0, 5.0, 9.0, 6.0]),
        ("print(float(loss))", "float(loss)", [1.0, 5.0, 9.0, 6.0]),
    ],
)
def test_a_step_that_goes_on_from_the_one_before_runs_every_time_and_is_applied_in_turn(run, more, shown, expected):
    applied, _, seen, _ = run(STEP.format(more=more, seen=shown))
    assert (applied, seen) == ([[5.0], [6.0]], expected)


def test_what_a_step_slices_itself_is_as_long_as_the_batch(run):
    of_own = STEP.format(more="twice = 0.0; twice += 2 * loss", seen="(float(twice), len(rows))")
    assert run(of_own)[2] == [(2.0, 2), (10.0, 2), (10.0, 2), (12.0, 1)]
    last_is_others = of_own.replace("arange(7", "arange(5").replace("7", "5")
    assert run(last_is_others)[2] == [(2.0, 2), (10.0, 2), (8.0, 1)]


@pytest.mark.parametrize(
    ("given_up", "expected"), [(0, ([[5.0], [6.0]], [5.0, 9.0, 6.0])), (2, ([[6.0]], [1.0, 9.0, 6.0]))]
)
def test_a_step_that_is_given_up_keeps_nothing(run, given_up, expected):
    applied, _, seen, _ = run(STEP.format(more=f"if i == {given_up}: continue", seen="float(loss)"))
    assert (applied, seen) == expected


def test_what_only_the_first_step_draws_is_for_its_model(run):
    assert run(STEP.format(more="if not i: np.random.random()", seen="float(loss)"))[2] == [1.0, 5.0, 5.0, 6.0]


MODELS = """
def step(w, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(x * w)
    gradient = tape.gradient(loss, w)
    optimizer.apply_gradients([(gradient, w)])
    return float(loss)

weights = [tf.Variable(1.0), tf.Variable(100.0)]
for i in range(5):
    seen.append([step(w, tf.constant([float(i)])) for w in weights])
"""


PICKED = """
weights = [tf.Variable(1.0), tf.Variable(1.0)]

class Held:
    weights = weights

for i in range(8):
    batch = tf.constant([float(i)])
    {before}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(batch * {weight}) + 10.0 * {index}
    gradient = tape.gradient(loss, {weight})
    optimizer.apply_gradients([(gradient, {weight})])
    seen.append(float(loss))
"""


@pytest.mark.parametrize(
    ("weight", "before", "index"),
    [("weights[k]", "k = i % 2", "k"), ("weights[i % 2]", "", "(i % 2)"), ("Held.weights[k]", "k = i % 2", "k")],
)
def test_a_model_that_an_index_picks_gets_turns_and_values_of_its_own(run, weight, before, index):
    applied, _, seen, _ = run(PICKED.format(weight=weight, before=before, index=index))
    assert seen == [0.0, 11.0, 2.0, 13.0, 2.0, 13.0, 6.0, 17.0], "not the other model's loss"
    assert applied == [[2.0], [3.0], [6.0], [7.0]]


def test_a_step_function_of_several_models_takes_turns_with_each_and_returns_its_own_values(run):
    applied, counted, seen, _ = run(MODELS)
    assert seen == [[0.0, 0.0], [1.0, 100.0], [1.0, 100.0], [3.0, 300.0], [3.0, 300.0]]
    assert applied == [[1.0], [1.0], [3.0], [3.0]] and counted == [1, 1, 1, 1], "both of every other batch"


LEAVING = """
def train():
    for i in range(4):
        with tf.GradientTape() as tape:
            loss = weight * 1.0
        gradient = tape.gradient(loss, weight)
        optimizer.apply_gradients([(gradient, weight)])
        if i == 2:
            {leave}
try:
    train()
except ValueError:
    seen.append("handled")
seen.append("behind")
"""


@pytest.mark.parametrize(("leave", "seen_before"), [("return seen.append(1)", 0), ("raise ValueError", 0)])
def test_workers_meet_before_what_follows_a_loop_that_is_left(run, leave, seen_before):
    assert run(LEAVING.format(leave=leave))[3] == [seen_before]


def test_a_region_begins_in_a_case_of_match():
    code = "for x in ds:\n    match x:\n        case 0:\n            optimizer.minimize(lambda: f(x), weights)"
    assert text(code).count("runs_here(") == 1


@pytest.mark.parametrize(
    ("statement", "before"),
    [
        ("with suppress(ValueError):\n    w = f(x)\ntotal = w", True),
        ("with contextlib.suppress(ValueError):\n    w = f(x)\ntotal = w", True),
        ("with open(x) as file:\n    w = f(x)\ntotal = w", False),
        ("match x:\n    case 0:\n        w = 1\n    case _:\n        pass\ntotal = w", True),
    ],
)
def test_a_name_that_may_keep_its_value_is_read_before_it_is_bound(statement, before):
    order = _Order()
    for node in ast.parse(statement).body:
        order.visit(node)
    assert ("w" in order.before) is before
