"""Cases for Keras 3. A case returns a compiled model, features, labels and further arguments of `fit`."""

import keras
import numpy as np
import tensorflow as tf
from cases import BATCH, same_numbers
from keras import layers

script = same_numbers()
x, y = script.FEATURES, script.LABELS
floats = y.astype("float32")


def sequential(*hidden, loss, **compiled):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((12,)), *hidden, layers.Dense(1)])
    model.compile(compiled.pop("optimizer", script.momentum()), loss, **compiled)
    return model


def few_left():
    """The last batch has two samples: ranks idle."""
    model = sequential(
        layers.Dense(8, "relu"),
        layers.BatchNormalization(),
        loss="mse",
        metrics=["mae", keras.metrics.RootMeanSquaredError()],
    )
    return model, x[:962], floats[:962], {}


def scalar_sum():
    return (
        sequential(
            layers.Dense(8, "relu"),
            loss=lambda t, p: tf.reduce_sum(tf.square(t - p)),
            optimizer=keras.optimizers.SGD(0.001),
        ),
        x,
        floats,
        {},
    )


def no_reduction():
    return (
        sequential(loss=keras.losses.MeanSquaredError(reduction=None), optimizer=keras.optimizers.SGD(0.001)),
        x,
        floats,
        {},
    )


class Custom(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(8, "relu", kernel_regularizer="l2"), layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="loss")
        self.seen = self.add_weight(shape=(12,), initializer="zeros", trainable=False)

    def call(self, inputs):
        return self.out(self.hidden(inputs))

    def train_step(self, data):
        inputs, targets = data
        self.seen.assign(0.9 * self.seen + 0.1 * keras.ops.mean(inputs, axis=0))
        with tf.GradientTape() as tape:
            loss = self.value(targets, self(inputs, training=True))
            loss += sum(self.losses) if self.regularized else 0.0
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result(), "raw": loss}

    @property
    def metrics(self):
        return [self.tracker]


class Mean(Custom):
    regularized = True

    def value(self, targets, predictions):
        return tf.reduce_mean(tf.square(targets[:, None] - predictions))


class Sum(Custom):
    regularized = False

    def value(self, targets, predictions):
        return tf.reduce_sum(tf.square(targets[:, None] - predictions)) / BATCH


class Two(Mean):
    """Two optimizers, each with its part of the model."""

    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = self.value(targets, self(inputs, training=True))
        hidden, out = self.hidden.trainable_variables, self.out.trainable_variables
        of_hidden, of_out = tape.gradient(loss, [hidden, out])
        self.optimizer.apply(of_hidden, hidden)
        self.second.apply(of_out, out)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def two_optimizers():
    model, *rest = custom(Two)()
    model.second = keras.optimizers.Adam(0.01)
    return model, *rest


def custom(kind):
    def case():
        keras.utils.set_random_seed(1)
        model = kind()
        model(x[:1])
        model.compile(optimizer=script.momentum())
        return model, x, floats, {}

    return case


def two_outputs():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((12,))
    hidden = layers.Dense(8, "relu")(inputs)
    model = keras.Model(inputs, {"a": layers.Dense(1, name="a")(hidden), "b": layers.Dense(2, name="b")(hidden)})
    losses = {"a": "mse", "b": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    model.compile("adam", losses, loss_weights={"a": 0.3, "b": 1.0}, metrics={"b": ["accuracy"]}, steps_per_execution=4)
    return model, x, {"a": floats, "b": y}, {}


class WeightsAfterStep(keras.metrics.Mean):
    """Reads weights in Keras's own step, behind their update."""

    def __init__(self, layer):
        super().__init__(name="weights")
        self.layer = layer

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(tf.reduce_sum(tf.abs(tf.convert_to_tensor(self.layer.kernel))))


def metrics():
    hidden = layers.Dense(8, "relu")
    return (
        sequential(
            hidden,
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[
                keras.metrics.AUC(num_thresholds=20, from_logits=True),
                "binary_accuracy",
                keras.metrics.F1Score(threshold=0.5),
                keras.metrics.R2Score(),
                WeightsAfterStep(hidden),
            ],
        ),
        x,
        floats[:, None],
        {},
    )


def embedding_clipped():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([layers.Embedding(20, 6), layers.GlobalAveragePooling1D(), layers.Dense(1)])
    model.compile(keras.optimizers.AdamW(0.01, global_clipnorm=0.5, use_ema=True, gradient_accumulation_steps=2), "mse")
    return model, script.TOKENS, floats, {}


def compiled_step():
    return (
        sequential(
            layers.Dense(8, "relu"),
            loss="mse",
            jit_compile=True,
            metrics=["mae"],
            optimizer=keras.optimizers.LossScaleOptimizer(script.momentum()),
        ),
        x,
        floats,
        {},
    )


def coded():
    return script.dense()


def not_finite():
    model, features, *rest = few_left()
    features = features.copy()
    features[3 * BATCH - 1] = np.nan
    return model, features, *rest


extra = [coded, few_left, scalar_sum, no_reduction, two_outputs, metrics, embedding_clipped, compiled_step]
extra += [two_optimizers, not_finite]
named = {case.__name__: case for case in [*script.CASES[:-1], *extra]}
CASES = {**named, "custom_mean": custom(Mean), "custom_sum": custom(Sum)}
