"""Small models that are hard to divide: plain Keras, trained alone and in slices by `ranks.py`."""

import importlib.util
from pathlib import Path

import numpy as np

ROWS, BATCH, EPOCHS = 1003, 64, 3
_SCRIPT = Path(__file__).parents[1] / "integration" / "scripts" / "same_numbers.py"


OPTIONS = {  # of the job, by case
    "coded": {"rule": "coded"},
    "not_finite": {"on_nan": "skip", "bucket_mb": "0.0001"},
    **dict.fromkeys(("two_outputs", "embedding_clipped", "compiled_step", "custom_mean"), {"bucket_mb": "0.0001"}),
}


def _script():
    spec = importlib.util.spec_from_file_location("same_numbers", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keras_cases():
    import keras
    import tensorflow as tf

    script = _script()
    layers, x, y = keras.layers, script.FEATURES, script.LABELS
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
        model.compile(
            "adam", losses, loss_weights={"a": 0.3, "b": 1.0}, metrics={"b": ["accuracy"]}, steps_per_execution=4
        )
        return model, x, {"a": floats, "b": y}, {}

    def metrics():
        return (
            sequential(
                layers.Dense(8, "relu"),
                loss=keras.losses.BinaryCrossentropy(from_logits=True),
                metrics=[
                    keras.metrics.AUC(from_logits=True),
                    "binary_accuracy",
                    keras.metrics.F1Score(threshold=0.5),
                    keras.metrics.R2Score(),
                ],
            ),
            x,
            floats[:, None],
            {},
        )

    def embedding_clipped():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([layers.Embedding(20, 6), layers.GlobalAveragePooling1D(), layers.Dense(1)])
        model.compile(
            keras.optimizers.AdamW(0.01, global_clipnorm=0.5, use_ema=True, gradient_accumulation_steps=2), "mse"
        )
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
        return named["dense"]()

    def not_finite():
        model, features, *rest = few_left()
        features = features.copy()
        features[3 * BATCH - 1] = np.nan
        return model, features, *rest

    extra = [coded, few_left, scalar_sum, no_reduction, two_outputs, metrics, embedding_clipped, compiled_step]
    extra += [two_optimizers, not_finite]
    named = {case.__name__: case for case in [*script.CASES[:-1], *extra]}
    return {**named, "custom_mean": custom(Mean), "custom_sum": custom(Sum)}


def tf_keras_cases():
    import tf_keras

    script = _script()
    layers, x, y = tf_keras.layers, script.FEATURES, script.LABELS

    def classifier(*hidden, shape, reduction="sum_over_batch_size", **compiled):
        tf_keras.utils.set_random_seed(1)
        model = tf_keras.Sequential([tf_keras.Input(shape), *hidden, layers.Dense(2)])
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
        model.compile(loss=loss, metrics=["accuracy"], **compiled)
        return model

    def old_dense():
        return (
            classifier(
                layers.Dense(16, "relu", kernel_regularizer="l2"),
                shape=(12,),
                optimizer=tf_keras.optimizers.SGD(0.05, 0.9),
            ),
            x,
            y,
            {},
        )

    def old_batch_norm():
        hidden = [
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.BatchNormalization(),
        ]
        return classifier(*hidden, shape=(8, 8, 1), optimizer="adam"), script.IMAGES, y, {}

    def old_summed():
        return (
            classifier(
                layers.Dense(16, "relu"), shape=(12,), reduction="sum", optimizer=tf_keras.optimizers.SGD(0.001, 0.9)
            ),
            x,
            y,
            {},
        )

    def old_masked():
        tf_keras.utils.set_random_seed(1)
        model = tf_keras.Sequential(
            [layers.Embedding(20, 6, mask_zero=True), layers.LSTM(7, return_sequences=True), layers.Dense(3)]
        )
        model.compile(
            "adam", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True), weighted_metrics=["accuracy"]
        )
        return model, script.TOKENS, script.TAGS, {}

    return {case.__name__: case for case in [old_dense, old_batch_norm, old_summed, old_masked]}


def names():
    """Those that tests/integration/test_same_numbers.py does not train end to end."""
    return (
        "dense coded few_left scalar_sum no_reduction two_outputs metrics embedding_clipped compiled_step custom_mean "
        "custom_sum two_optimizers not_finite old_dense old_batch_norm old_summed old_masked"
    ).split()


def finite_batches(x, y):
    """Without the batches that hold NaN, which a run with `--on-nan skip` passes over."""
    bad = [start for start in range(0, len(x), BATCH) if np.isnan(x[start : start + BATCH]).any()]
    rows = [slice(start, start + BATCH) for start in bad]
    return (np.delete(x, np.r_[tuple(rows)], 0), np.delete(y, np.r_[tuple(rows)], 0)) if rows else (x, y)


def result(model, logs):
    """What is compared: every epoch's logs, and the weights."""
    arrays = {f"log {key}": np.asarray(values, np.float64) for key, values in logs.items()}
    return {**arrays, **{f"w{i}": np.asarray(w) for i, w in enumerate(model.get_weights())}}
