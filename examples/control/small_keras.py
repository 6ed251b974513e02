"""What the peers of federated.py train: a Keras model on scikit-learn's digits."""

import os
from functools import cache

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import softmax


@cache
def model():
    """One model a process: simulated peers share it, so its weights are set before every use."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Input((65,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
    made = keras.Sequential(layers)
    # No momentum: an optimizer's slots would be shared, too. A peer that needs them keeps them as tensors.
    made.compile(keras.optimizers.SGD(0.1), keras.losses.CategoricalCrossentropy(from_logits=True))
    return made


@cache
def start():
    return model().get_weights()  # cached: the model is trained later


def train(weights, x, targets):
    """Return the weights after a pass over a peer's own rows."""
    model().set_weights(weights)
    model().fit(x, targets, batch_size=32, shuffle=False, verbose=0)
    return model().get_weights()


def mean(*weights):
    return [np.mean(each, axis=0) for each in zip(*weights, strict=True)]


def accuracy(weights):
    model().set_weights(weights)
    return float(np.mean(model().predict(softmax.x, verbose=0).argmax(axis=1) == softmax.y))
