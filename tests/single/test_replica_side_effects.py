"""Side effects of a tf.function's calls that a worker leaves out: repeated, refused, or of no effect."""

import pytest
import tensorflow as tf

from fdt.errors import CaptureError
from tests.single import test_replica_iterations

Worker1, run = test_replica_iterations.Worker1, test_replica_iterations.run


EFFECTS = """
fraction, pair, state, queue = tf.Variable(0.0), tf.Variable([0.0, 0.0]), tf.Variable(0.0), tf.Variable(tf.zeros([4]))
calls, total = tf.Variable(0), keras.Variable(0.0)
class Counted(keras.metrics.Mean):
    def __init__(self):
        super().__init__()
        self.calls = tf.Variable(0)
    def update_state(self, values):
        self.calls.assign_add(1)
        self.count.assign_add(1.0)
        super().update_state(values)
class Averaged(keras.layers.Layer):
    def call(self, batch):
        state.assign(0.9 * state + 0.1 * tf.reduce_mean(batch))
        return batch
counted, averaged, ema = Counted(), Averaged(), tf.train.ExponentialMovingAverage(0.9)
@tf.function
def inner():
    calls.assign_add(1)
@tf.function
def acting(batch):
    {change}
    return step(batch)
for number, batch in enumerate(dataset):
    acting(batch)
    count(number + 1)
"""


def test_constants_are_added_in_calls_that_are_left_out(run):
    change = "fraction.assign_add(0.5); pair.assign(pair - [1.0, 2.0]); total.assign(2.0 + total); inner()"
    change += "; counted.update_state(0.5)"
    names, rank = run(EFFECTS.format(change=change), process_group := Worker1())
    assert len(process_group.pushed) == 3
    assert float(names["fraction"]) == 3.0 and names["pair"].numpy().tolist() == [-6.0, -12.0]
    assert float(names["total"]) == 12.0
    assert int(names["calls"]) == 6, "added in a function within the function"
    counted = names["counted"]
    assert float(counted.count) == 6.0, "a metric's state is added up later: two for each call of this worker"
    assert int(counted.calls) == 6, "but not what is no part of its state"


LOST = {
    "sum": "fraction.assign_add(tf.reduce_mean(batch))",
    "average": "fraction.assign(0.9 * fraction + 0.1)",
    "scattered": "queue.scatter_update(tf.IndexedSlices(batch[:1, 0], [calls % 4]))",
    "keras": "total.assign_add(tf.reduce_mean(batch))",
    "wrapped": "calls.assign_add(1)\n    if calls == 4:\n        calls.assign(0)",
    "slice": "queue[:1].assign(batch[0])",
    "branch": "tf.cond(tf.reduce_sum(batch) > 0, lambda: calls.assign_add(1), lambda: calls.read_value())",
    "read_outside": "more = fraction + 1\n    tf.cond(more > 0, lambda: fraction.assign(more), lambda: more)",
    "own_weights": "bias.assign_sub([0.5 * bias[0]])\n    pair.assign_sub(2 * pair)",
    "library": "ema.apply([pair])",
}


@pytest.mark.parametrize("change", LOST)
def test_what_other_workers_calls_change_is_refused_at_the_first_call(run, change):
    with pytest.raises(CaptureError, match=r"variable that changes at .*script.py:\d+ would miss"):
        run(EFFECTS.format(change=LOST[change]), process_group := Worker1())
    assert not process_group.pushed


KEPT = {
    "weights": "weight.assign(tf.clip_by_value(weight, -1.0, 1.0))",
    "rate": "optimizer.iterations.assign(optimizer.iterations + 0)",
    "layer": "averaged(batch)",
    "metric": "counted.update_state(batch)",
    "last": "fraction.assign(tf.reduce_mean(batch))",
    "reset": "pair.assign(tf.zeros_like(pair))",
    "copied": "fraction.assign(weight[0])",
}


@pytest.mark.parametrize("change", KEPT)
def test_what_workers_exchange_or_replace_is_not_refused(run, change):
    run(EFFECTS.format(change=KEPT[change]), Worker1())


BEHIND = """
@tf.function
def clip():
    weight.assign(tf.clip_by_value(weight, -1.0, 1.0))
class Halved(keras.layers.Layer):
    def call(self, batch):
        weight.assign(0.5 * weight)
        return batch
class Own(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        variable.assign_sub(0.1 * variable)
        super().update_step(gradient, variable, learning_rate)
halved = Halved()
{before}
@tf.function
def acting(batch, late):
    loss = step(batch)
    {change}
    return loss
for number, batch in enumerate(dataset):
    acting(batch, {late})
"""
BEHIND_THE_UPDATE = {
    "clipped": "weight.assign(tf.clip_by_value(weight, -1.0, 1.0))",
    "decayed": "weight.assign_sub(0.1 * weight)",
    "in_a_function": "clip()",
    "in_a_branch": "tf.cond(loss > 0, lambda: weight.assign(weight / 2.0), lambda: weight.read_value())",
    "from_others": "bias.assign(weight)",
    "in_a_later_trace": "if late:\n        weight.assign(0.5 * weight)",
}


@pytest.mark.parametrize("group", [Worker1, test_replica_iterations.Rank0])
@pytest.mark.parametrize("change", BEHIND_THE_UPDATE)
def test_an_assignment_behind_the_update_of_its_variable_is_refused(run, group, change):
    with pytest.raises(CaptureError, match=r"assignment at .*script.py:\d+, after the update .* constraint"):
        late = "number > 2" if change == "in_a_later_trace" else "False"
        run(BEHIND.format(before="", change=BEHIND_THE_UPDATE[change], late=late), group())


@pytest.mark.parametrize("group", [Worker1, test_replica_iterations.Rank0])
@pytest.mark.parametrize(
    ("before", "change"),
    [
        ("", "weight.assign_add([0.5])"),
        ("", "counts.append(tf.identity(weight))"),
        ("", "halved(batch)"),
        ("optimizer.__class__ = Own", ""),
    ],
    ids=["constant", "reading", "layer", "optimizer"],
)
def test_what_may_stand_behind_an_update(run, group, before, change):
    run(BEHIND.format(before=before, change=change, late="False"), group())


ACCUMULATED = """
total = tf.Variable([0.0], trainable=False)
@tf.function
def add(batch):
    with tf.GradientTape() as tape:
        loss = loss_of(batch)
    total.assign_add(tape.gradient(loss, weight))
@tf.function
def apply():
    optimizer.apply_gradients([(total, weight)])
    total.assign([0.0])
for number, batch in enumerate(dataset):
    add(batch)
    if number % 2:
        apply()
"""


def test_gradients_are_added_up_in_one_function_and_applied_in_another(run):
    names, rank = run(ACCUMULATED, process_group := Worker1(), steps=2)
    assert len(process_group.pushed) == 1, "the second of three updates"


FORWARD = """
seen = tf.Variable(0.0)
@tf.function
def forward(batch):
    seen.assign(seen * 0.5 + 1)
    return loss_of(batch)
for number, batch in enumerate(dataset):
    with tf.GradientTape() as tape:
        loss = forward(batch)
    {again}
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
"""


def test_a_function_of_an_eager_step_is_refused_only_if_the_step_is_left_out(run):
    with pytest.raises(CaptureError, match="would miss"):
        run(FORWARD.format(again=""), Worker1())
    names, rank = run(FORWARD.format(again="counts.append(loss)"), Worker1())
    assert float(names["seen"]) == sum(0.5**n for n in range(6)), "computed by every worker"


def test_a_function_that_runs_eagerly_is_refused(run):
    script = EFFECTS.format(change="pass").replace("for number", "tf.config.run_functions_eagerly(True)\nfor number")
    try:
        with pytest.raises(CaptureError, match=r"run_functions_eagerly is on, so the step function at \S+:\d+ has no"):
            run(script, Worker1())
    finally:
        tf.config.run_functions_eagerly(False)
