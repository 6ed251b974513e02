"""The counts of a worker that takes steps in turns, and the values that the script reads of them."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from client_shim.replica.metric_state import Metrics
from fdt.errors import CaptureError
from nfdt.replica.round_robin import RoundRobin


class State:
    """Of a worker: whose step it is, and what other workers add."""

    def __init__(self):
        self.whose, self.looping, self.asked, self.others = "", False, [], {}

    def add(self, tensors, name):
        self.asked.append(name)
        return [
            t + tf.cast(o, t.dtype) for t, o in zip(tensors, self.others.get(name, [0] * len(tensors)), strict=True)
        ]


@pytest.fixture
def state(monkeypatch):
    state = State()
    metrics = Metrics(
        state.add, lambda: state.whose == "mine", lambda: state.looping, lambda: state.whose == "others", lambda: True
    )
    original = keras.metrics.Metric.__init__
    monkeypatch.setattr(
        keras.metrics.Metric, "__init__", lambda metric, *a, **k: metrics.made(original, metric, *a, **k)
    )
    return state


def test_a_worker_without_a_step_of_its_own_adds_nothing_and_is_there(state):
    mean = keras.metrics.Mean(name="mean")
    state.whose = "others"
    mean.update_state([7.0, 7.0])
    state.whose, state.others = "", {"parts of metric mean": [1], "metric mean": [6.0, 2.0]}
    assert float(mean.result()) == 3.0
    mean.reset_state()
    assert float(mean.result()) == 3.0, "nor one that has had no batch at all"
    state.others = {}
    mean.update_state([5.0])
    assert float(mean.result()) == 5.0 and state.asked[-1] == "parts of metric mean", "an evaluation's is whole"


def test_within_a_loop_it_shows_anothers_step_until_it_holds_its_own(state):
    mean = keras.metrics.Mean()
    state.looping, shown = True, []
    for whose, value in (("others", 4.0), ("mine", 2.0), ("others", 8.0), ("", None)):
        state.whose = whose
        mean.reset_state()
        if value is not None:  # else the step is left out, its update along
            mean.update_state([value])
        shown.append(float(mean.result()))
    assert shown == [4.0, 2.0, 8.0, 8.0] and not state.asked
    state.whose = "mine"
    mean.update_state([1.0])
    state.whose = "others"
    mean.update_state([9.0])
    assert float(mean.result()) == 1.0


class Built(keras.metrics.Metric):
    """A sum that is built by its first update."""

    total = None

    def update_state(self, values):
        if self.total is None:
            self.total = self.add_variable((), "zeros")
        self.total.assign_add(tf.reduce_sum(values))

    def result(self):
        return tf.zeros(()) if self.total is None else self.total.value


def test_what_another_builds_is_empty_for_this_workers_own(state):
    built = Built()
    for state.whose, value in (("others", 4.0), ("mine", 2.0), ("others", 8.0)):
        built.update_state([value])
    state.whose = ""
    assert float(built.result()) == 2.0


def test_in_a_graph_too(state):
    mean = keras.metrics.Mean()

    @tf.function
    def others(value):
        state.whose = "others"
        mean.update_state(value)

    @tf.function
    def mine(value):
        state.whose = "mine"
        mean.update_state(value)

    state.looping, shown = True, []
    for step, value in ((others, 4.0), (mine, 2.0), (others, 8.0)):
        step(tf.constant(value))
        shown.append(float(mean.result()))
    assert shown == [4.0, 2.0, 2.0]


def test_a_function_that_is_gone_leaves_no_output_to_the_next():
    turns = RoundRobin(1, 2, lambda: None, lambda rows: None)

    class Model:
        pass

    model = Model()
    assert turns.call(model, ((), {}), lambda: "a") == "a" and turns.call(model, ((), {}), lambda: "b") == "b"
    assert turns.call(model, ((), {}), lambda: "c") == "b", "another's"
    assert turns.call(model, ((), {}), lambda: "d", kind="fit") == "d", "a call of another kind has its own"
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None and turns.call(Model(), ((), {}), lambda: "e") == "e"


def in_steps(loop, tmp_path):
    """Was `probe()` in a step, where `loop` stands in a training loop?"""
    turns, seen = RoundRobin(0, 2, lambda: None, lambda rows: None), []
    path = tmp_path / "script.py"
    path.write_text(f"for step in range(1):\n    begin()\n    optimizer.apply_gradients([])\n    {loop}\n")

    class Metric:
        def update_state(self, *_):
            seen.append(turns.in_step())

    class Optimizer:
        def apply_gradients(self, _):
            pass

    from client_shim.replica.steps import loop_at_work

    model = keras.Sequential([keras.layers.Dense(1)])
    names = {"optimizer": Optimizer(), "m": Metric(), "x": np.ones([1, 2], "float32"), "model": model, "tf": tf}
    names |= {
        "begin": lambda: turns.begin(turns.region(turns, 0), loop_at_work(), None, ready=False),
        "ds": tf.data.Dataset.range(1),
    }
    exec(compile(path.read_text(), str(path), "exec"), names)
    return seen


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("m.update_state(x)", True),
        ("for metric in [m]: metric.update_state(x, tf.sigmoid(x))", True),
        ("[metric.update_state(x) for metric in [m]]", True),
        ("for row in x: m.update_state(row)", True),
        ("for i in range(1): m.update_state(model(x[i:i + 1]))", False),
        ("for i in range(1): m.update_state(model.predict_on_batch(x))", False),
        ("for batch in ds.take(1): m.update_state(batch)", False),
    ],
)
def test_a_loop_within_the_step_is_the_steps_unless_it_evaluates(tmp_path, loop, expected):
    assert in_steps(loop, tmp_path) == [expected]


def test_workers_that_number_as_many_regions_otherwise_end_with_an_error():
    turns = RoundRobin(0, 2, lambda: None, lambda rows: None)
    region = turns.region(turns, "a")
    for _ in range(3):
        turns.begin(region, None, None, ready=False)  # micro-batches: nothing is applied
    assert turns.progress() == [1, 3, 1]
    turns.met([5, 3, 1])
    assert turns.progress() == [5, 0, 0]
    turns.begin(region, None, None, ready=False)
    turns.begin(region, None, None, ready=False)
    with pytest.raises(CaptureError, match="different steps before .*: a result of a step"):
        turns.met([7, 2, 2])
    turns.met([7, 3, 3])  # rank 0 has left a loop later
