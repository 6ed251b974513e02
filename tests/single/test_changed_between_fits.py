"""A model that is changed between two fits without compile(): Keras alone goes on with the step that it traced."""

import weakref
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tf_keras

from client_shim.changed_objects import refuse_changed_between_fits
from fdt.errors import NeedsReplica

pytestmark = pytest.mark.filterwarnings("default")

X, Y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
FLAVORS = pytest.mark.parametrize("keras", [keras, tf_keras], ids=["keras", "tf_keras"])


def compiled(keras, model=None):
    layers = keras.layers.Dense(2, name="first"), keras.layers.Dropout(0.5, name="drop"), keras.layers.Dense(1)
    model = model or keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def fits(model, traced):
    refuse_changed_between_fits(traced, SimpleNamespace(model=model))


def freeze(keras, model):
    model.layers[0].trainable = False


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
        (replace_optimizer, "the optimizer changed"),
    ],
)
def test_a_change_that_keras_does_not_regard_is_refused_until_compile(keras, change, words):
    if keras is tf_keras and change in (set_momentum, replace_optimizer):
        pytest.skip("a momentum that is a variable there; an optimizer that cannot be set")
    model, traced = compiled(keras), weakref.WeakKeyDictionary()
    fits(model, traced)
    change(keras, model)
    with pytest.raises(NeedsReplica, match=f"{words} since the last fit .* call compile"):
        fits(model, traced)
    fits(compiled(keras, model), traced)


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
    model.layers[0].trainable = False
    model.layers[0].trainable = True
    fits(model, traced)
    fits(compiled(keras), traced)  # another model
    freeze(keras, model)
    model.compile(model.optimizer, "mse")
    fits(model, traced)
