"""A plain Keras script: one small model after another, all trained on the same 1,003 samples without shuffling.

It writes the results of `fit` and the weights as JSON and .npz, which the test compares between runs.
"""

import json
import sys

import keras
import numpy as np
from keras import layers

ROWS, BATCH, EPOCHS = 1003, 64, 3
rng = np.random.default_rng(0)
FEATURES = rng.normal(size=(ROWS, 12)).astype("float32")
LABELS = (FEATURES[:, :3].sum(axis=1) + rng.normal(scale=0.3, size=ROWS) > 0).astype("int32")
IMAGES = rng.normal(size=(ROWS, 8, 8, 1)).astype("float32")
IMAGES[:, :4] += 0.5 * LABELS[:, None, None, None]
LENGTHS = rng.integers(1, 10, ROWS)
TOKENS = np.where(np.arange(10) < LENGTHS[:, None], rng.integers(1, 20, (ROWS, 10)), 0).astype("int32")
TAGS = (TOKENS % 3).astype("int32")
FLAGS = np.ones((ROWS, 1), "float32")
FLAGS[70] = 0.0  # one sample of the second batch: its gradient is not finite


@keras.saving.register_keras_serializable()
class Kink(layers.Layer):
    """sqrt(flag * relu(w)): where the flag is 0 the value is finite and the gradient is not."""

    def build(self, shape):
        self.w = self.add_weight(shape=(1,), initializer="ones")

    def call(self, x):
        return keras.ops.sqrt(x * keras.ops.relu(self.w))


def classifier(*hidden, shape, **compiled):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input(shape), *hidden, layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=compiled.pop("reduction", "sum_over_batch_size")
    )
    model.compile(loss=loss, metrics=["accuracy"], **compiled)
    return model


def momentum():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def dense():
    model = classifier(layers.Dense(16, "relu", kernel_regularizer="l2"), shape=(12,), optimizer=momentum())
    return model, FEATURES, LABELS, {}


def convolutional():
    hidden = [layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
    return classifier(*hidden, shape=(8, 8, 1), optimizer=keras.optimizers.Adam(0.01)), IMAGES, LABELS, {}


def batch_norm():
    hidden = [
        layers.Conv2D(4, 3, use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Flatten(),
        layers.BatchNormalization(),
    ]
    return classifier(*hidden, shape=(8, 8, 1), optimizer=momentum()), IMAGES, LABELS, {}


def masked():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [layers.Embedding(20, 6, mask_zero=True), layers.LSTM(7, return_sequences=True), layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, weighted_metrics=["accuracy"])
    return model, TOKENS, TAGS, {}


def class_weight():
    return *dense()[:3], {"class_weight": {0: 0.3, 1: 2.5}}


def sample_weight():
    weights = np.linspace(0.1, 3, ROWS).astype("float32")
    model = classifier(layers.Dense(8, "tanh"), shape=(12,), optimizer="adam", reduction="mean_with_sample_weight")
    return model, FEATURES, LABELS, {"sample_weight": weights}


def summed():
    model = classifier(
        layers.Dense(16, "relu"), shape=(12,), optimizer=keras.optimizers.SGD(0.001, momentum=0.9), reduction="sum"
    )
    return model, FEATURES, LABELS, {}


def compiled():
    return classifier(layers.Dense(16, "relu"), shape=(12,), optimizer="adam", jit_compile=True), FEATURES, LABELS, {}


def overflow():
    keras.utils.set_random_seed(1)
    x, flag = keras.Input((12,)), keras.Input((1,))
    model = keras.Model([x, flag], layers.Dense(1)(layers.Dense(8, "relu")(x)) + Kink()(flag))
    model.compile(keras.optimizers.LossScaleOptimizer(momentum(), dynamic_growth_steps=5), "mse", metrics=["mae"])
    return model, [FEATURES, FLAGS], LABELS.astype("float32"), {}


def validated():
    return *dense()[:3], {"validation_split": 0.3}


CASES = [dense, convolutional, batch_norm, masked, class_weight, sample_weight, summed, compiled, overflow, validated]


def main(out):
    histories = {}
    for case in CASES:
        keras.utils.set_random_seed(1)  # initializers draw their seeds when layers are made
        model, x, y, arguments = case()
        history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, **arguments)
        histories[case.__name__] = {key: [float(v) for v in values] for key, values in history.history.items()}
        histories[case.__name__]["iterations"] = [int(model.optimizer.iterations)]
        np.savez(f"{out}-{case.__name__}.npz", *[np.asarray(w) for w in model.get_weights()])
    with open(f"{out}.json", "w") as file:
        json.dump(histories, file)


if __name__ == "__main__":
    main(sys.argv[1])
