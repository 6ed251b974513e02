"""Iterations under NFDT: a worker runs every iteration of a loop and computes its own; counts are those alone."""

import ast

import keras
import numpy as np
import pytest
import tensorflow as tf

from client_shim.replica.rewriting import rewritten
from client_shim.replica.skippable_regions import RegionHooks as Hooks
from fdt.errors import CaptureError
from fdt.process_group import RankPush
from fdt.process_group.peer import PeerGroup
from fdt.process_group.root import RootGroup
from nfdt.replica.rank import RoundRobinRank


class Worker1(PeerGroup):
    """Of two workers. Rank 0 adds up what it is sent."""

    def __init__(self):
        self.rank, self.size, self.pushed, self.met = 1, 2, [], 0

    def push_pull(self, vector, header):
        self.pushed.append(header["samples"])
        return np.full_like(vector, len(self.pushed)), {}

    def broadcast(self, value, name):
        self.met += name == "agreement"
        return value

    def rank_0_reads(self, place, number):
        return number

    def next_moment(self):
        pass

    def _whole(self, combined, name):
        return np.zeros_like(combined.whole)


class Rank0(RootGroup):
    """The other worker has pushed two gradients by the time of rank 0's second step, and none else."""

    def __init__(self):
        self.size, self.pushed, self.met, self._asked, self.answers = 2, [], 0, 0, 0

    def pushes(self):
        self._asked += 1
        push = RankPush(1, {"optimizer": 0, "samples": 4, "absent": []}, np.ones(2, "float32"), self.answer)
        return [push] * 2 if self._asked == 2 else []

    def answer(self, vector, header):
        self.answers += 1

    broadcast, _whole = Worker1.broadcast, Worker1._whole
    rank_0_reads, next_moment = Worker1.rank_0_reads, Worker1.next_moment


@pytest.fixture
def run(tmp_path):
    """Runs a script as one of two workers; its names, and the worker's process group."""

    def running(code, process_group, steps=3):
        path = tmp_path / "script.py"
        path.write_text(BEFORE + code)
        names, hooks = {"tf": tf, "np": np, "keras": keras, "__name__": "script"}, Hooks()
        rank = RoundRobinRank(process_group, {"rule": "asgd"})
        hooks.rank, names["rank"] = rank.skippable_regions, rank
        with rewritten(hooks), rank.in_tensorflow(), rank.in_keras("keras"):
            exec(compile(hooks.rewrite(ast.parse(BEFORE + code)), str(path), "exec"), names)
            assert rank.steps() == steps
        return names, rank

    return running


BEFORE = """
x = np.arange(24, dtype="float32").reshape(24, 1)
dataset = tf.data.Dataset.from_tensor_slices(x).batch(4)
weight, bias = tf.Variable([0.0]), tf.Variable([0.0])
optimizer = keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.0, 0.0]))
counts, mean = [], keras.metrics.Mean()
def loss_of(batch):
    return tf.reduce_mean(batch * weight + bias)
def step(batch):
    with tf.GradientTape() as tape:
        loss = loss_of(batch)
    gradients = tape.gradient(loss, [weight, bias])
    optimizer.apply_gradients(zip(gradients, [weight, bias]))
    mean.update_state(batch)
    return loss
def count(*more):
    counts.append((int(optimizer.iterations), *more))
"""
INLINE = """
    with tf.GradientTape() as tape:
        loss = loss_of(batch)
    gradients = tape.gradient(loss, [weight, bias])
    optimizer.apply_gradients(zip(gradients, [weight, bias]))
    mean.update_state(batch)
    count(number + 1)
"""
COMPILED = """
step = tf.function(step)
for number, batch in enumerate(dataset):
    step(batch)
    count(number + 1)
"""
GRADIENTS_OF = """
@tf.function
def gradients_of(batch):
    with tf.GradientTape() as tape:
        loss = loss_of(batch)
    return loss, tape.gradient(loss, [weight, bias])
"""
LOOPS = {
    "enumerated": "for number, batch in enumerate(dataset):" + INLINE,
    "slices": "for number in range(6):\n    batch = x[4 * number:4 * number + 4]" + INLINE,
    "drawn": "batches = iter(dataset)\nfor number in range(6):\n    batch = next(batches)" + INLINE,
    "taken": "number = 0\nfor batch in dataset.repeat().take(6):" + INLINE + "    number += 1\n",
    "function": "for number, batch in enumerate(dataset):\n    step(batch)\n    count(number + 1)\n",
    "compiled": COMPILED,
    "method": """
class Trainer:
    steps = 0
    def train(self):
        for batch in dataset:
            step(batch)
            self.steps += 1
            count(self.steps)
Trainer().train()
""",
    "gradients": f"""{GRADIENTS_OF}for number, batch in enumerate(dataset):
    loss, gradients = gradients_of(batch)
    optimizer.apply_gradients(zip(gradients, [weight, bias]))
    mean.update_state(batch)
    count(number + 1)
""",
}


@pytest.mark.parametrize("style", LOOPS)
def test_a_worker_comes_to_every_iteration_and_computes_its_own(run, style):
    names, rank = run(LOOPS[style], process_group := Worker1())
    assert names["counts"] == [(n, n) for n in range(1, 7)], "iterations, and the script's own count"
    assert process_group.pushed == [4, 4, 4]
    assert process_group.met == 1, "behind the loop"
    mine = names["x"].reshape(6, 4)[1::2]
    assert float(names["mean"].total) == mine.sum() and float(names["mean"].count) == 12


def test_rank_0s_iterations_are_its_steps_until_all_meet(run):
    names, rank = run(LOOPS["compiled"] + "\nweight.assign([5.0])", process_group := Rank0())
    assert names["counts"] == [(n, n) for n in range(1, 7)]
    assert process_group.answers == 2
    assert int(names["optimizer"].iterations) == 5, "updates: three of its own, two of the other's"


CLOSURE = """
batches, steps = iter(dataset.repeat()), tf.Variable(0)
@tf.function
def drawing():
    steps.assign_add(1)
    return step(next(batches))
for number in range(6):
    drawing()
    count(number + 1, int(steps))
after = next(batches)
"""


def test_a_call_that_is_left_out_draws_its_batch_and_moves_counts_on(run):
    names, rank = run(CLOSURE, process_group := Worker1())
    assert names["counts"] == [(n, n, n) for n in range(1, 7)]
    assert float(names["after"][0, 0]) == 0.0, "six of six have been drawn"
    assert len(process_group.pushed) == 3


def test_a_step_that_draws_in_a_loop_of_its_graph_is_refused(run):
    nested = CLOSURE.replace("return step(next(batches))", "for _ in tf.range(2):\n        step(next(batches))")
    with pytest.raises(CaptureError, match=r"the step function at .*script.py:\d+"):
        run(nested, Worker1())


ELSEWHERE = """
def forward(batch):
    with tf.GradientTape() as tape:
        loss = loss_of(batch)
    return loss, tape
for number, batch in enumerate(dataset):
    loss, tape = forward(batch)
    optimizer.apply_gradients(zip(tape.gradient(loss, [weight, bias]), [weight, bias]))
    mean.update_state(batch)
    count(number + 1)
"""


def test_what_cannot_be_left_out_is_computed_by_all_and_applied_by_one(run):
    names, rank = run(ELSEWHERE, process_group := Worker1())
    assert names["counts"] == [(n, n) for n in range(1, 7)] and process_group.pushed == [4, 4, 4]
    assert (rank.counts()["replicated"], rank.counts()["algorithm"]) == (6, "asgd")
    assert float(names["mean"].total) == names["x"].sum(), "which every worker has seen whole"


NESTED = """
critic = keras.optimizers.SGD(0.0)
for number in range(6):
    for batch in dataset.take(2):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        critic.apply_gradients([(tape.gradient(loss, weight), weight)])
    with tf.GradientTape() as tape:
        loss = loss_of(batch)
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    count(number + 1, int(critic.iterations))
"""


def test_steps_of_an_inner_loop_go_on_with_the_outer_ones(run):
    names, rank = run(NESTED, process_group := Worker1(), steps=6)
    assert names["counts"] == [(n, n, 2 * n) for n in range(1, 7)]
    assert len(process_group.pushed) == 6 + 3 and process_group.met == 1


EPOCHS = """
for epoch in range(2):
    with tf.name_scope("epoch"):
        for batch in dataset.take(3):
            step(batch)
        if epoch < 5:
            mean.result()
"""


def test_a_loop_over_epochs_is_none_that_steps_go_on_in(run):
    run(EPOCHS, process_group := Worker1())
    assert process_group.met == 2


def test_where_a_loop_goes_on_is_agreed(run):
    """Worker 1 has left the first loop a step before rank 0, which is to take the fourth step."""

    class Earlier(Worker1):
        def broadcast(self, value, name):
            super().broadcast(value, name)
            return [3, 3, 3] if name == "agreement" else value

    begun = "step = tf.function(step)\nfor batch in dataset.take(2):\n    step(batch)\n"
    names, rank = run(begun + "for batch in dataset.take(3):\n    step(batch)", Earlier())
    assert float(names["mean"].total) == names["x"].reshape(6, 4)[[1, 0, 2]].sum()


LENGTHS = """
ran, given = [], []
note = ran.append
for length in (3, 5, 4, 7, 6, 2):
    batch = tf.ones([4, length])
    with tf.GradientTape() as tape:
        rows = batch * weight
        loss = tf.reduce_mean(rows)
    note(length)
    gradients = tape.gradient(loss, [weight])
    optimizer.apply_gradients(zip(gradients, [weight]))
    given.append({given})
"""


@pytest.mark.parametrize(("given", "ran"), [("float(loss)", [3, 5, 7, 2]), ("rows.shape[1]", [3, 5, 4, 7, 6, 2])])
def test_a_batch_of_another_length_is_left_out_where_nothing_read_is_as_long(run, given, ran):
    names, rank = run(LENGTHS.format(given=given), Worker1())
    assert names["ran"] == ran
    assert given == "float(loss)" or names["given"] == [3, 5, 4, 7, 6, 2]


READ = "counts.append([float(loss), loss.numpy(), int(loss), bool(loss > 100)])"
GUARD = "counts.append(float(loss) < 100)"  # of this worker's gradients
READS = {
    "eager": f"""
for number, batch in enumerate(dataset):
    with tf.GradientTape() as tape:
        loss = loss_of(batch)
        {GUARD}
    gradients = tape.gradient(loss, [weight, bias])
    {GUARD}
    optimizer.apply_gradients(zip(gradients, [weight, bias]))
    {READ}
""",
    "gradients": f"""{GRADIENTS_OF}for number, batch in enumerate(dataset):
    loss, gradients = gradients_of(batch)
    {GUARD}
    optimizer.apply_gradients(zip(gradients, [weight, bias]))
    {READ}
""",
    "two optimizers": f"""
critic = keras.optimizers.SGD(0.0)
for number, batch in enumerate(dataset):
    with tf.GradientTape() as tape:
        loss = loss_of(batch)
    of_weight, of_bias = tape.gradient(loss, [weight, bias])
    {GUARD}
    optimizer.apply_gradients([(of_weight, weight)])
    if number:  # the first step shows that there are two
        {GUARD}
    critic.apply_gradients([(of_bias, bias)])
    {READ}
""",
    "scaled": f"""
optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
for number, batch in enumerate(dataset):
    with tf.GradientTape() as tape:
        loss = loss_of(batch)
        scaled = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, [weight, bias])
    {GUARD}
    optimizer.apply_gradients(zip(gradients, [weight, bias]))
    {READ}
""",
    "compiled": f"""
{GUARD}
step = tf.function(step)
for number, batch in enumerate(dataset):
    loss = step(batch)
    {READ}
""",
}


@pytest.mark.parametrize("side", [Worker1, Rank0])
@pytest.mark.parametrize("style", READS)
def test_numbers_are_rank_0s_unless_they_may_decide_whether_this_workers_gradients_are_applied(run, style, side):
    class Told(side):
        def rank_0_reads(self, place, number):
            return True if isinstance(number, bool) else 250.0

        def pushes(self):
            return []

    names, _ = run("loss = tf.constant(1.0)" + READS[style], Told())
    behind = [each for each in names["counts"] if isinstance(each, list)]
    own = [each for each in names["counts"] if not isinstance(each, list)]
    assert behind == [[250.0, 250.0, 250, True]] * 6
    assert own == [True] * {"eager": len(own), "two optimizers": 11, "compiled": 1}.get(style, 6) and own


def test_what_train_on_batch_returns_is_rank_0s(run):
    class Told(Worker1):
        def rank_0_reads(self, place, number):
            return 250.0

    names, _ = run(
        """
model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.0), "mse")
for number, batch in enumerate(dataset):
    counts.append(model.train_on_batch(batch, batch, return_dict=number > 2))
""",
        Told(),
        steps=2,  # each kind of call has turns of its own
    )
    assert names["counts"] == [250.0] * 3 + [{"loss": 250.0}] * 3


ASSIGNED = """
scale, ran = {variable}, []
for batch in dataset:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(batch * weight) + tf.reduce_sum(batch) * scale
    gradient, change = tape.gradient(loss, [weight, scale])
    optimizer.apply_gradients([(gradient, weight)])
    {assign}
    ran.append(float(scale))
"""


@pytest.mark.parametrize(
    ("variable", "assign"),
    [
        ("tf.Variable(0.0)", "scale.assign_sub(change)"),
        ("keras.Variable(0.0)", "scale.assign(scale - change)"),
        ("tf.Variable(0.0)", "for v, c in [(scale, change)]: v.assign_add(-c)"),
    ],
)
def test_weights_that_the_script_assigns_beside_an_optimizer_get_the_gradients_of_all_batches(run, variable, assign):
    names, rank = run(ASSIGNED.format(variable=variable, assign=assign), process_group := Worker1())
    assert names["ran"][-1] == -names["x"].sum() and float(names["scale"]) == 0.0, "in the end they are rank 0's"
    assert len(process_group.pushed) == 3, "the optimizer's weights are still those of every worker's own steps"
    assert rank.counts()["replicated"] == 5, "all but the first step, in which the assignment is found"


def test_a_change_of_weights_that_an_optimizer_updates_is_no_such_assignment(run):
    code = "clipped = tf.clip_by_value(weight, -1.0, 1.0)\n    weight.assign(clipped)"
    _, rank = run(ASSIGNED.format(variable="tf.Variable(0.0)", assign=code), Worker1())
    assert rank.counts()["replicated"] == 0


def test_workers_are_in_line_until_the_first_step_which_one_of_them_takes(run):
    code = """
seen = [rank.in_line()]
for batch in dataset:
    step(batch)
    seen.append((rank.steps(), rank.in_line()))
"""
    names, _ = run(code, Worker1())
    assert names["seen"][:3] == [True, (0, False), (1, False)]
