"""A model that is changed between two fits without compile(): Keras alone goes on with the step that it traced."""

import dataclasses
import functools
import os
import weakref
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from client_shim.changed_objects import refuse_changed_between_fits, step_code
from fdt.errors import NeedsReplica
from fdt.keras import flavor_of

pytestmark = pytest.mark.filterwarnings("default")

X, Y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
FLAVORS = pytest.mark.parametrize("keras", [keras, tf_keras], ids=["keras", "tf_keras"])


def compiled(keras, model=None):
    layers = keras.layers.Dense(2, name="first"), keras.layers.Dropout(0.5, name="drop"), keras.layers.Dense(1)
    if model is None:
        scaled = keras.layers.Normalization(name="norm")
        scaled.adapt(X)
        model = keras.Sequential([keras.Input((3,)), scaled, *layers])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def fits(model, traced):
    call = SimpleNamespace(model=model, flavor=flavor_of(model))
    refuse_changed_between_fits(traced, call, step_code(call))


def freeze(keras, model):
    model.get_layer("first").trainable = False


def adapt(keras, model):
    model.get_layer("norm").adapt(2 * X)


def set_steps(keras, model):
    model.steps_per_execution = 2


def set_momentum(keras, model):
    model.optimizer.momentum = 0.5


def set_clipnorm(keras, model):
    model.optimizer.clipnorm = 0.5


def set_dropout(keras, model):
    model.get_layer("drop").rate = 0.1


def replace_optimizer(keras, model):
    model.optimizer = keras.optimizers.SGD(0.1, momentum=0.9)


@FLAVORS
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (freeze, "the list of trainable variables changed"),
        (set_momentum, "a setting of the optimizer changed"),
        (set_clipnorm, "a setting of the optimizer changed"),
        (set_dropout, "a setting of layer 'drop' changed"),
        (adapt, "a setting of layer 'norm' changed"),
        (set_steps, "steps_per_execution changed"),
        (replace_optimizer, "the optimizer changed"),
    ],
)
def test_a_change_that_keras_does_not_regard_is_refused_until_compile(keras, change, words):
    if keras is tf_keras and change in (set_momentum, replace_optimizer, set_steps):
        pytest.skip("there these are variables, and an optimizer cannot be set")
    model, traced = compiled(keras), weakref.WeakKeyDictionary()
    fits(model, traced)
    change(keras, model)
    for _ in range(2):  # a script may catch the error, and try again
        with pytest.raises(NeedsReplica, match=f"{words} since the last fit .* call compile"):
            fits(model, traced)
    fits(compiled(keras, model), traced)


@FLAVORS
@pytest.mark.parametrize("kind", [np.asarray, tf.constant])
def test_a_long_vocabulary_is_no_change(keras, kind):
    words = kind(np.array([f"w{n}" for n in range(10_001)], dtype=object))
    inputs = keras.Input((1,), dtype="string")
    found = keras.layers.StringLookup(vocabulary=words, name="words")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Embedding(10_002, 2)(found)))
    model.compile("sgd", "mse")
    traced = weakref.WeakKeyDictionary()
    fits(model, traced)
    between = [list(range(20_000)) for _ in range(9)]  # takes what was given back
    fits(model, traced)
    assert between


@FLAVORS
def test_what_scripts_do_between_fits_is_no_change(keras, tmp_path):
    model, traced = compiled(keras), weakref.WeakKeyDictionary()
    fits(model, traced)
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    model.save_weights(tmp_path / "of.weights.h5")
    model.load_weights(tmp_path / "of.weights.h5")
    model.best, model.stop_training = 3.5, True
    model.optimizer.learning_rate = 0.01
    model.get_layer("first").trainable = False
    model.get_layer("first").trainable = True
    model.get_layer("norm").adapt(X)
    fits(model, traced)
    fits(compiled(keras), traced)  # another model
    freeze(keras, model)
    model.compile(model.optimizer, "mse")
    fits(model, traced)


SETTINGS = SimpleNamespace(scale=1.0, unread=1.0, by_name={"power": 2, "unread": 0})


def scaled(y, p):
    return SETTINGS.scale * abs(y - p) ** SETTINGS.by_name["power"]


def own(keras):
    class Shift(keras.layers.Layer):
        unit = 1.0

        def __init__(self):
            super().__init__()
            self.shift, self.table, self.unread, self.traces = 0.0, np.zeros(3), 0.0, 0

        def call(self, x):
            self.traces += 1
            return x + self.shift * self.unit + self.moved()

        def moved(self):
            return sum(self.table)

    model = keras.Sequential([keras.Input((3,)), Shift(), Shift(), keras.layers.Dense(1)])
    model.compile("sgd", scaled)
    return model


def set_shift(model, monkeypatch):
    model.layers[0].shift = 1.0


def set_table(model, monkeypatch):
    model.layers[1].table = np.ones(3)


def set_unit(model, monkeypatch):
    monkeypatch.setattr(type(model.layers[0]), "unit", 2.0)


def set_scale(model, monkeypatch):
    monkeypatch.setattr(SETTINGS, "scale", 2.0)


def set_item(model, monkeypatch):
    monkeypatch.setitem(SETTINGS.by_name, "power", 1)


@FLAVORS
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_shift, "self.shift, which Shift "),
        (set_table, "self.table, which Shift "),
        (set_unit, "self.unit, which Shift "),
        (set_scale, "SETTINGS.scale, which scaled "),
        (set_item, "SETTINGS.by_name, which scaled "),
    ],
)
def test_a_plain_value_that_the_traced_code_reads_is_refused_until_compile(keras, change, words, monkeypatch):
    model, traced = own(keras), weakref.WeakKeyDictionary()
    fits(model, traced)
    change(model, monkeypatch)
    with pytest.raises(NeedsReplica, match=f"{words}.* changed since the last fit"):
        fits(model, traced)
    model.compile("sgd", scaled)
    fits(model, traced)


@FLAVORS
def test_values_that_the_traced_code_does_not_read_may_change(keras, monkeypatch):
    model, traced = own(keras), weakref.WeakKeyDictionary()
    fits(model, traced)
    model.layers[0].unread = model.layers[0].traces = 5
    monkeypatch.setattr(SETTINGS, "unread", 2.0)
    monkeypatch.setitem(SETTINGS.by_name, "unread", 3)
    fits(model, traced)


class Base(SimpleNamespace):
    def weight(self):
        return self.inner


HELPER, WORDS, HANDLE = Base(inner=1.0), tf.constant(["a", "b"]), tf.Variable(1.0).handle
TRACES, COUNTS = [], {}


def wrapped(factor):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            return factor["by"] * function(*args)

        return wrapper

    return decorate


@dataclasses.dataclass(slots=True)
class Slotted:
    bias: float = 0.0


FACTOR, SLOTTED = {"by": 1.0}, Slotted()


def by_helper(y, p):
    assert WORDS.shape == (2,) and HANDLE is not None
    TRACES.append(1)
    COUNTS["calls"] = COUNTS.get("calls", 0) + 1
    return HELPER.weight() * abs(y - p) + SLOTTED.bias


@wrapped(FACTOR)
def by_wrapper(y, p):
    return by_helper(y, p)


def with_property(keras):
    class Scaled(keras.layers.Layer):
        power = 1.0

        @property
        def scale(self):
            return self.hidden

        def call(self, x):
            return x * self.scale**self.power

    class Derived(Scaled):
        def call(self, x):
            return super().call(x) + 1

    layer = Derived()
    layer.hidden, layer.act = 1.0, np.tanh
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", by_wrapper)
    return model


@FLAVORS
def test_a_variable_of_the_environment(keras, monkeypatch):
    def difference(y, p):
        return (y - p) * float(os.environ.get("SCALE", "1")) + float(os.getenv("SHIFT", "0"))

    for name in ("SCALE", "SHIFT"):
        model, traced = compiled(keras), weakref.WeakKeyDictionary()
        model.compile("sgd", difference)
        fits(model, traced)
        monkeypatch.setenv("OTHER", name)
        fits(model, traced)
        monkeypatch.setenv(name, "2")
        with pytest.raises(NeedsReplica, match="os.*, which difference .* changed since"):
            fits(model, traced)


@FLAVORS
def test_values_are_found_behind_properties_base_classes_wrappers_and_helpers(keras, monkeypatch):
    changes = {
        "self.hidden": lambda model: setattr(model.layers[0], "hidden", 2.0),
        "self.power": lambda model: setattr(model.layers[0], "power", 2.0),
        "factor": lambda model: monkeypatch.setitem(FACTOR, "by", 2.0),
        "SLOTTED.bias": lambda model: monkeypatch.setattr(SLOTTED, "bias", 2.0),
        "HELPER.inner": lambda model: monkeypatch.setattr(HELPER, "inner", 2.0),
    }
    for name, change in changes.items():
        model, traced = with_property(keras), weakref.WeakKeyDictionary()
        fits(model, traced)
        TRACES.append(2)
        COUNTS["calls"] = len(TRACES)  # the traced code changes both
        fits(model, traced)
        change(model)
        with pytest.raises(NeedsReplica, match=f"{name}, which .* changed since"):
            fits(model, traced)
