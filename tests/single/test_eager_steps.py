"""Steps whose Python runs in each step: which code of the script they have, and what is refused."""

import functools
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf
import tf_keras

from client_shim.changed_objects import build, eager_check, refuse_in_eager_steps
from client_shim.script_code import script_code, script_parts
from fdt.errors import NeedsReplica
from fdt.keras import flavor_of

pytestmark = pytest.mark.filterwarnings("default")
FLAVORS = pytest.mark.parametrize("keras", [keras, tf_keras], ids=["keras", "tf_keras"])


def scaled(x, by=1.0):
    return x * by


def helped(x, helper):
    return x


class Scale:
    def method(self, x):
        return x

    def __call__(self, x):
        return x


class Raising(Scale):
    def __getattr__(self, name):
        raise RuntimeError(name)

    @property
    def size(self):
        raise RuntimeError("size")


class Unreadable:
    def __getattribute__(self, name):
        raise RuntimeError(name)


def in_itself():
    items = [scaled]
    items.append(items)
    return items


@pytest.mark.parametrize(
    "held",
    [
        scaled,
        Scale(),
        Scale().method,
        functools.partial(scaled, by=2.0),
        functools.partial(functools.partial(keras.ops.add, 1.0), x2=scaled),
        functools.lru_cache(scaled),
        tf.function(scaled),
        [{"first": (scaled,)}],
        in_itself(),
        pytest.param(Raising(), id="raising"),
    ],
)
def test_code_of_the_script_is_found_in_what_holds_it(held):
    assert any(found is held or found is scaled for found in script_code([held]))


@pytest.mark.parametrize(
    "held",
    [
        keras.ops.relu,
        functools.partial(keras.ops.relu),
        Scale,
        "relu",
        [1.0],
        tf.function,
        pytest.param(Unreadable(), id="unreadable"),
    ],
)
def test_other_objects_are_no_code_of_the_script(held):
    assert script_code([held]) == []


def model_of(keras, activation="relu", optimizer="sgd", *, eager=False):
    layers = [keras.layers.Dense(2, name="first"), keras.layers.Activation(activation), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer, "mse", run_eagerly=eager or None)
    return model


def call_of(model, *callbacks):
    return SimpleNamespace(model=model, callbacks=callbacks, flavor=flavor_of(model))


@FLAVORS
def test_a_layer_with_attributes_that_raise_has_code_of_the_script(keras):
    model = model_of(keras, functools.partial(helped, helper=Raising()))
    function, raising = script_parts(model)
    assert function.startswith("helped (test_eager_steps.py:") and raising.startswith("Raising (test_eager_steps.py:")


@pytest.fixture
def functions_eager():
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@FLAVORS
@pytest.mark.parametrize("divided", [False, True])
def test_eager_functions_with_code_of_the_script_are_refused(keras, functions_eager, divided):
    refuse_in_eager_steps(call_of(model_of(keras)), trained=False, divided=divided)
    with pytest.raises(
        NeedsReplica, match=r"run_functions_eagerly is on, .* code of scaled \(test_eager_steps\.py:\d+\)"
    ):
        refuse_in_eager_steps(call_of(model_of(keras, scaled)), trained=False, divided=divided)


@FLAVORS
def test_a_schedule_of_the_script_is_refused_where_workers_would_trace_it(keras, functions_eager):
    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

    model = model_of(keras, optimizer=keras.optimizers.SGD(Schedule()), eager=True)
    with pytest.raises(NeedsReplica, match=r"the Python code of Schedule \(test_eager_steps\.py:\d+\)"):
        refuse_in_eager_steps(call_of(model), trained=False, divided=True)
    tf.config.run_functions_eagerly(False)
    refuse_in_eager_steps(call_of(model), trained=False, divided=True)


CALLS = []


def counted(x):
    CALLS.append(1)
    return x


class Counting(Scale):
    def __init__(self):
        self.steps = 0

    def __call__(self, x):
        self.steps += 1
        return x


def counted_in(x, calls):
    calls.append(1)
    return x


def local_list(x):
    rows, by_name = [], {}
    rows.append(x)
    by_name["x"] = rows[0]
    return by_name["x"]


class Blocks(Scale):
    def __init__(self):
        self.blocks, self.sizes = [scaled, scaled], (1, 2)

    def __call__(self, x):
        outs = []
        for block in self.blocks[: self.sizes[0]]:
            outs.append(block(x))
        return outs[-1]


@FLAVORS
def test_an_eager_step_that_changes_values_of_the_script_is_refused_on_one_worker_too(keras):
    for activation in (counted, Counting(), functools.partial(counted_in, calls=[])):
        with pytest.raises(NeedsReplica, match=r"runs the Python code of [cC]ount\w+ \(test_eager_steps\.py:\d+\)"):
            refuse_in_eager_steps(call_of(model_of(keras, activation, eager=True)), trained=False, divided=False)
    for activation in (scaled, Scale(), local_list, Blocks()):
        refuse_in_eager_steps(call_of(model_of(keras, activation, eager=True)), trained=False, divided=False)


class Freeze(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None): ...


@FLAVORS
def test_a_callback_that_freezes_a_layer_in_eager_steps_is_refused(keras):
    model = model_of(keras, eager=True)
    check = eager_check(call_of(model, Freeze()))
    assert check() is check
    model.get_layer("first").trainable = False
    with pytest.raises(NeedsReplica, match=r"callback Freeze \(\S+\) changed the list of trainable variables"):
        check()


@FLAVORS
def test_nothing_is_compared_where_no_callback_of_the_script_can_change_an_eager_step(keras):
    assert eager_check(call_of(model_of(keras, eager=True))) is None
    assert eager_check(call_of(model_of(keras), Freeze())) is None


@FLAVORS
@pytest.mark.parametrize("eager", [True, False])
def test_a_model_whose_code_cannot_be_traced_starts_again_where_it_runs_eagerly(keras, eager):
    class Read(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x) * float(x.numpy().max())

    model, spec = Read(), (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1]))
    model.compile("sgd", "mse", run_eagerly=eager)
    with pytest.raises(Exception, match="numpy|cannot be traced") as raised:
        build(call_of(model), spec, trained=False)
    assert isinstance(raised.value, NeedsReplica) is eager
