"""What a step or its data read of the client's process and workers do not have: the run starts again, replicated."""

import functools
import random
import sys
import weakref
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from client_shim.changed_objects import refuse_changed_between_fits, step_code
from client_shim.not_sent import refuse_not_sent
from fdt.errors import NeedsReplica
from fdt.keras import flavor_of

X, Y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
FLAVORS = pytest.mark.parametrize("keras", [keras, tf_keras], ids=["keras", "tf_keras"])
RNG = np.random.default_rng(0)
SCALE = float(np.pi)


def model_of(keras, *layers, loss="mse", optimizer="sgd"):
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, loss)
    return model


def refuse(model, x=X):
    call = SimpleNamespace(model=model, flavor=flavor_of(model), arguments={"x": x})
    refuse_not_sent(call, step_code(call))


def refused(words, model, x=X):
    with pytest.raises(NeedsReplica, match=words):
        refuse(model, x)


@FLAVORS
def test_a_method_that_the_script_replaced_in_a_library_class(keras, monkeypatch):
    def call(self, inputs):
        return inputs

    def __call__(self, step):  # noqa: N807 - the method's name
        return 0.1

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)
    model = model_of(keras, optimizer=keras.optimizers.SGD(schedule))
    refuse(model)
    with monkeypatch.context() as patch:
        patch.setattr(keras.layers.Dense, "call", call)
        refused(r"replaced Dense.call by call \(test_not_sent.py:\d+\), and workers import the library anew", model)
    with monkeypatch.context() as patch:
        patch.setattr(type(schedule), "__call__", __call__)
        refused("replaced ExponentialDecay.__call__ by", model)


class Thrice:
    def __init__(self, function):
        self.function = function

    def __get__(self, layer, kind=None):
        return lambda *args, **kwargs: 3 * self.function(layer, *args, **kwargs)

    def __call__(self, x):
        return 3 * self.function(x)


@FLAVORS
def test_a_method_that_the_script_replaced_by_another_object(keras, monkeypatch):
    layer, model = keras.layers.Dense, model_of(keras)

    @functools.wraps(layer.call)  # it has the names of the library's
    def wrapped(self, x):
        return 3 * x

    def gain(self, x, by):
        return x * by

    for member, words in (
        (Thrice(layer.call), "Thrice"),
        (wrapped, "call"),
        (functools.partialmethod(gain, by=2), "gain"),
        (tf.function(wrapped), "call"),
        (property(lambda self: tf.identity), "<lambda>"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(layer, "call", member)
            refused(rf"replaced Dense.call by {words} \(test_not_sent.py:\d+\), and workers", model)


@FLAVORS
def test_a_function_that_the_script_replaced_in_a_module_of_a_library(keras, monkeypatch):
    def twice(x, by=2):
        return x * by

    keras.utils.get_custom_objects()["twice"] = twice  # Keras keeps it in a dict, which is sent
    refuse(model_of(keras, keras.layers.Activation(twice)))
    del keras.utils.get_custom_objects()["twice"]
    monkeypatch.setattr(keras.utils, "get_file", twice)  # no step calls it
    exec(compile("def relu(x): return x", "/home/sitecustomize.py", "exec"), started := {})  # workers run it, too
    monkeypatch.setattr(tf.nn, "relu", started["relu"])
    monkeypatch.setattr(keras.losses, "twice_of_mine", twice, raising=False)  # it replaces nothing
    refuse(model_of(keras))
    starred = sys.modules[f"{keras.__name__}.src.{'ops' if keras.__name__ == 'keras' else 'activations'}"]  # import *
    for module, name in ((tf, "matmul"), (tf.nn, "relu"), (keras.activations, "tanh"), (starred, "relu")):
        for value, words in (
            (twice, "twice"),
            (functools.wraps(tf.nn.relu)(lambda x: x), "relu"),
            (functools.partial(twice, by=3), "twice"),
            (tf.function(twice), "twice"),
            (Thrice(twice), "Thrice"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, value)
                place = rf"(tensorflow|(tf_)?keras).*\.{name}"
                refused(rf"the script replaced {place} by {words} \(test_not_sent", model_of(keras))
    refuse(model_of(keras))


@FLAVORS
def test_random_numbers_of_python_or_numpy_in_traced_code(keras):
    class Shaken(keras.layers.Layer):
        def __init__(self, draw):
            super().__init__()
            self.draw, self.start = draw, np.random.normal()

        def call(self, x):
            return x + self.drawn()

        def drawn(self):
            return self.draw()

    def by_numpy(y, p):
        return (y - p) * np.random.normal()

    def by_generator(y, p):
        return (y - p) * RNG.normal()

    def by_tensorflow(y, p):
        return (y - p) * tf.random.normal((), dtype=p.dtype) * np.exp(SCALE)

    refused(r"by_numpy \(.*\) draws from np.random while Keras traces", model_of(keras, loss=by_numpy))
    refused("draws from RNG while Keras traces", model_of(keras, loss=by_generator))

    def by_import(y, p):
        import numpy

        return (y - p) * numpy.random.normal()

    class Again(Shaken):
        def call(self, x):
            return super().call(x)

    refused(r"by_import \(.*\) draws from numpy while", model_of(keras, loss=by_import))
    refused(r"Again \(.*\) draws from self.draw while", model_of(keras, Again(random.random)))
    refused(r"Shaken \(.*\) draws from self.draw while Keras", model_of(keras, Shaken(random.random)))
    refuse(model_of(keras, Shaken(lambda: 1.0), loss=by_tensorflow))


@FLAVORS
def test_tables_that_may_change(keras):
    class Named(keras.layers.Layer):
        def __init__(self, tables):
            super().__init__()
            self.tables = tables

        def call(self, x):
            return x * tf.ensure_shape(self.tables["scale"].lookup(tf.constant(1)), ())

    changing = tf.lookup.experimental.MutableHashTable(tf.int32, tf.float32, 1.0)
    words = r"Named \(.*\) looks up self.tables, a table that may change, and workers have copies"
    refused(words, model_of(keras, Named({"scale": changing})))
    refused(words, model_of(keras, Named({"scale": fixed_table(), "more": {"deep": changing}})))
    find = changing.lookup

    def scaled(y, p):
        return (y - p) * find(tf.constant(1))

    refused(r"scaled \(.*\) looks up find, a table", model_of(keras, loss=scaled))


def fixed_table():
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2.0]), 1.0)


@FLAVORS
def test_tables_that_do_not_change(keras):
    class Renamed(dict):
        values, items = 1, 2

    tables, words = Renamed(scale=fixed_table()), keras.layers.StringLookup()
    words.adapt([["a"]])  # which counts the words in a table of its own

    def scaled(y, p):
        return (y - p) * tables["scale"].lookup(tf.constant(1)) * len(words.name)

    refuse(model_of(keras, loss=scaled))


def batches(by):
    while True:
        yield X, by(X)


def mapped(by):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).map(lambda x, y: (x, by(x)))


class Agent:
    def __init__(self, by):
        self.by = by

    def episodes(self):
        while True:
            yield from self.episode()

    def episode(self):
        yield X, self.by(X)


@FLAVORS
def test_training_data_that_are_computed_from_the_trained_weights(keras):
    model, teacher = model_of(keras), model_of(keras)

    class Batches(keras.utils.Sequence if keras is tf_keras else keras.utils.PyDataset):
        def __init__(self, by):
            super().__init__()
            self.by = by

        def __len__(self):
            return 1

        def __getitem__(self, number):
            return X, self.by(X)

    class Mined(Batches):
        def __getitem__(self, number):
            return X, Y

        def on_epoch_end(self):
            self.by(X)

    for make, words in ((batches, "the generator batches"), (Batches, "Batches"), (mapped, "a map of the dataset")):
        refused(f"{words}.* computes training data from the trained weights", model, make(model))
        refuse(model, make(teacher))
    refuse(model, Mined(model))


@FLAVORS
def test_training_data_that_other_code_computes_from_the_trained_weights(keras):
    model, teacher = model_of(keras), model_of(keras)
    made, agent = batches(model), Agent(model)
    by_python = tf.data.Dataset.from_tensor_slices(X).map(lambda x: tf.py_function(lambda x: model(x), [x], tf.float32))

    def around():
        yield from batches(model)

    def inner():
        for number, batch in enumerate(made):
            yield (*batch, number)

    def sampled():
        while True:
            yield agent.episode()

    refused("the generator around computes", model, around())
    refused("the generator inner computes", model, inner())
    refused("the generator sampled computes", model, sampled())
    refused("a map of the dataset computes", model, by_python)
    refused("the generator episodes computes training data", model, agent.episodes())
    refuse(model, Agent(teacher).episodes())


@FLAVORS
def test_a_function_of_the_scripts_own_that_keras_calls_for_a_step(keras):
    class Own(keras.Model):
        def call(self, x):
            return self.dense(x)

        def make_train_function(self, force=False):
            return lambda iterator: {"loss": 0.0}

    model = Own()
    model.dense = keras.layers.Dense(1)
    model.compile("sgd", "mse")
    model(X)
    refused(r"make_train_function \(.*\) for Keras's make_train_function, and workers call", model)
    model = model_of(keras)
    model.train_function = lambda iterator: {"loss": 0.0}
    refused(r"<lambda> \(.*\) for Keras's train_function", model)


class AttrDict(dict):
    __getattr__ = dict.__getitem__


class Proxy:
    def __getattr__(self, name):
        raise RuntimeError("outside of a request")


SETTINGS, PROXY = AttrDict(scale=2.0), Proxy()


@FLAVORS
def test_objects_that_answer_for_every_attribute_are_not_asked(keras):
    def loss(y, p):
        return SETTINGS.scale * abs(y - p) if PROXY else y

    def batches():
        while PROXY:
            yield SETTINGS.x, Y

    model = model_of(keras, loss=loss)
    for data in (X, {"x": X}, AttrDict(x=X), PROXY, batches(), [X, Y], None):
        refuse(model, data)
    call = SimpleNamespace(model=model, flavor=flavor_of(model))
    refuse_changed_between_fits(weakref.WeakKeyDictionary(), call, step_code(call))


def test_a_model_under_a_strategy_of_one_device():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = model_of(tf_keras)
    with pytest.raises(NeedsReplica, match="in the scope of MirroredStrategy. Remove the scope, or use `--capture"):
        flavor_of(model).refuse(model)
