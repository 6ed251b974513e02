"""Typical models of scripts, for both flavors of Keras: each (model, x, y), compiled."""

from typing import Any

import numpy as np
import tensorflow as tf

ROWS = 48


def features(columns: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).rand(ROWS, columns).astype("float32")


def labels(classes: int = 3) -> np.ndarray:
    return np.random.RandomState(1).randint(0, classes, ROWS)


def images() -> np.ndarray:
    return np.random.RandomState(2).rand(ROWS, 8, 8, 1).astype("float32")


def crossentropy(k: Any) -> Any:
    return k.losses.SparseCategoricalCrossentropy(from_logits=True)


def dense(k: Any) -> Any:
    model = k.Sequential([k.layers.Input((5,)), k.layers.Dense(8, activation="relu"), k.layers.Dense(3)])
    model.compile("sgd", crossentropy(k), metrics=["accuracy"])
    return model, features(), labels()


def lazy(k: Any) -> Any:
    model = k.Sequential([k.layers.Dense(8, activation="relu"), k.layers.Dense(3, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model, features(), labels()


def conv_batchnorm(k: Any) -> Any:
    layers = [
        k.layers.Input((8, 8, 1)),
        k.layers.Conv2D(4, 3, kernel_regularizer=k.regularizers.L2(1e-3)),
        k.layers.BatchNormalization(),
        k.layers.Activation("relu"),
        k.layers.GlobalAveragePooling2D(),
        k.layers.Dense(3),
    ]
    model = k.Sequential(layers)
    model.compile(k.optimizers.SGD(0.1, momentum=0.9, nesterov=True), crossentropy(k), metrics=["accuracy"])
    return model, images(), labels()


def several_inputs(k: Any) -> Any:
    a, b = k.Input((5,), name="a"), k.Input((3,), name="b")
    shared = k.layers.Dense(4, activation="tanh")
    joined = k.layers.Concatenate()([shared(k.layers.Dense(3)(a)), shared(b)])
    one = k.layers.Dense(1, name="one")(joined)
    two = k.layers.Dense(3, name="two")(k.layers.Dropout(0.0)(joined))
    model = k.Model({"a": a, "b": b}, {"one": one, "two": two})
    losses = {"one": "mse", "two": crossentropy(k)}
    optimizer = k.optimizers.AdamW(0.01, weight_decay=0.01, clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizer, losses, loss_weights={"one": 0.5, "two": 2.0}, metrics={"two": ["accuracy"]})
    y = {"one": features(1, seed=3), "two": labels()}
    return model, {"a": features(), "b": features(3, seed=4)}, y


def ema(k: Any) -> Any:
    model, x, y = dense(k)
    optimizer = k.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2)
    model.compile(optimizer, crossentropy(k), metrics=["accuracy"])
    return model, x, y


def schedule(k: Any) -> Any:
    model, x, y = dense(k)

    class Halving(k.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        """A schedule of the script's own, whose config says nothing."""

        def __init__(self, start: float) -> None:
            self.start = start

        def __call__(self, step: Any) -> Any:
            return self.start * 0.5 ** tf.cast(step, "float32")

        def get_config(self) -> dict[str, Any]:
            return {}

    model.compile(k.optimizers.RMSprop(Halving(0.1)), crossentropy(k))
    return model, x, y


def loss_scale(k: Any) -> Any:
    model, x, y = dense(k)
    inner = k.optimizers.Adam(0.01)
    if k.__name__ == "keras":
        optimizer = k.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10, dynamic_growth_steps=2)
    else:
        optimizer = k.mixed_precision.LossScaleOptimizer(inner, initial_scale=2.0**10, dynamic_growth_steps=2)
    model.compile(optimizer, crossentropy(k), metrics=["accuracy"])
    return model, x, y


def mixed_precision(k: Any) -> Any:
    layers = [k.layers.Input((5,)), k.layers.Dense(8, dtype="mixed_float16"), k.layers.Dense(3, dtype="float32")]
    model = k.Sequential(layers)
    model.compile(k.optimizers.SGD(0.1), crossentropy(k), metrics=["accuracy"])
    return model, features(), labels()


def recurrent(k: Any) -> Any:
    layers = [
        k.layers.Embedding(20, 4, mask_zero=True),
        k.layers.Bidirectional(k.layers.LSTM(3)),
        k.layers.Dense(3),
    ]
    model = k.Sequential(layers)
    model.compile("adam", crossentropy(k), metrics=["accuracy"])
    return model, np.random.RandomState(5).randint(0, 20, (ROWS, 6)), labels()


def attention(k: Any) -> Any:
    inputs = k.Input((6, 4))
    attended = k.layers.MultiHeadAttention(2, 4)(inputs, inputs)
    normed = k.layers.LayerNormalization()(attended + inputs)
    model = k.Model(inputs, k.layers.Dense(3)(k.layers.Flatten()(normed)))
    model.compile(k.optimizers.Adam(0.01), crossentropy(k), metrics=["accuracy"])
    return model, np.random.RandomState(6).rand(ROWS, 6, 4).astype("float32"), labels()


def text(k: Any) -> Any:
    words = np.array([f"w{i % 7} w{i % 5} w{i % 3}" for i in range(ROWS)])
    vectorize = k.layers.TextVectorization(max_tokens=10, output_sequence_length=4)
    vectorize.adapt(words)
    inputs = k.Input((1,), dtype="string")
    embedded = k.layers.Embedding(10, 4)(vectorize(inputs))
    model = k.Model(inputs, k.layers.Dense(3)(k.layers.Flatten()(embedded)))
    model.compile(k.optimizers.Adam(0.01), crossentropy(k), metrics=["accuracy"])
    return model, tf.constant(words)[:, None], labels()


def normalized(k: Any) -> Any:
    normalize = k.layers.Normalization()
    normalize.adapt(features() * 7)
    frozen = k.layers.Dense(4, trainable=False)
    model = k.Sequential([k.layers.Input((5,)), normalize, frozen, k.layers.Dense(3)])
    model.compile(k.optimizers.Adam(0.01), crossentropy(k), metrics=["accuracy"])
    return model, features(), labels()


def augmented(k: Any) -> Any:
    layers = [k.layers.Input((8, 8, 1)), k.layers.RandomFlip(seed=1), k.layers.Rescaling(0.5), k.layers.Flatten()]
    model = k.Sequential([*layers, k.layers.GaussianNoise(0.1, seed=2), k.layers.Dense(3)])
    model.compile(k.optimizers.Adam(0.01), crossentropy(k), metrics=["accuracy"])
    return model, images(), labels()


def lambdas(k: Any) -> Any:
    factor = 3.0
    inputs = k.Input((5,))
    scaled = k.layers.Lambda(lambda t: tf.nn.relu(t) * factor)(k.layers.Dense(4)(inputs))
    model = k.Model(inputs, k.layers.Dense(3)(scaled))
    model.compile("adam", loss=lambda y, p: crossentropy(k)(y, p) * factor)
    return model, features(), labels()


def ops(k: Any) -> Any:
    inputs = k.Input((5,))
    hidden = k.layers.Dense(4)(inputs)
    absolute = k.ops.abs(hidden) if k.__name__ == "keras" else tf.abs(hidden)
    model = k.Model(inputs, k.layers.Dense(3)(absolute[:, :2] * 2.0 + 1.0))
    model.compile("adam", crossentropy(k))
    return model, features(), labels()


def nested(k: Any) -> Any:
    trunk = k.Sequential([k.layers.Input((5,)), k.layers.Dense(4), k.layers.BatchNormalization()], name="trunk")
    trunk.compile("sgd", "mse")
    inputs = k.Input((5,))
    model = k.Model(inputs, k.layers.Dense(3)(trunk(inputs)))
    model.compile("adam", crossentropy(k), metrics=["accuracy"])
    return model, features(), labels()


def subclassed(k: Any) -> Any:
    class Block(k.layers.Layer):  # type: ignore[misc]
        def __init__(self, units: int, activation: Any) -> None:
            super().__init__()
            self.units, self.activation = units, activation

        def build(self, shape: Any) -> None:
            self.w = self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform", name="w")

        def call(self, x: Any) -> Any:
            return self.activation(tf.matmul(x, self.w))

    class Net(k.Model):  # type: ignore[misc]
        def __init__(self, block: Any) -> None:
            super().__init__()
            self.blocks = [block, Block(4, tf.nn.relu)]
            self.by_name = {"out": k.layers.Dense(3)}
            self.norm = k.layers.BatchNormalization()

        def call(self, x: Any, training: bool = False) -> Any:
            for block in self.blocks:
                x = block(x)
            return self.by_name["out"](self.norm(x, training=training))

    model = Net(Block(6, lambda t: tf.tanh(t) * 2.0))
    model.compile(k.optimizers.Adam(0.01), crossentropy(k), metrics=["accuracy"])
    return model, features(), labels()


def hinge_loss(k: Any) -> Any:
    class Hinge(k.losses.Loss):  # type: ignore[misc]
        def __init__(self, margin: float) -> None:
            super().__init__()
            self.margin = margin

        def call(self, y: Any, p: Any) -> Any:
            return tf.nn.relu(self.margin - p[:, 0] * (2.0 * tf.cast(y, p.dtype) - 1.0))

    return Hinge


def margin_metric(k: Any) -> Any:
    class Margin(k.metrics.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="margin")
            self.total = self.add_weight(name="total", initializer="zeros")

        def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
            self.total.assign_add(tf.reduce_mean(tf.cast(tf.abs(p), "float32")))

        def result(self) -> Any:
            return self.total + 0.0

    return Margin


def own_trainer(k: Any) -> Any:
    class Trainer(k.Model):  # type: ignore[misc]
        def __init__(self, net: Any) -> None:
            super().__init__()
            self.net, self.seen, self.margin = net, k.metrics.Mean(name="seen"), margin_metric(k)()

        def compile(self, g_optimizer: Any, loss_fn: Any, scale: float = 1.0) -> None:
            super().compile()
            self.g_optimizer, self.loss_fn, self.scale = g_optimizer, loss_fn, scale

        @property
        def metrics(self) -> Any:
            return [self.seen, self.margin]

        def call(self, x: Any) -> Any:
            return self.net(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = self.loss_fn(y, p) * self.scale
            weights = self.net.trainable_variables
            self.g_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            self.seen.update_state(loss)
            self.margin.update_state(y, p)
            return {"seen": self.seen.result(), "margin": self.margin.result(), "last": loss}

    return Trainer


def custom_everything(k: Any) -> Any:
    model = own_trainer(k)(k.Sequential([k.layers.Dense(4, activation="relu"), k.layers.Dense(1)]))
    model.compile(k.optimizers.Adam(0.05, clipvalue=0.5), hinge_loss(k)(0.7), scale=2.0)
    return model, features(), labels(2)


def accumulating(k: Any) -> Any:
    model, x, y = dense(k)
    model.compile(k.optimizers.SGD(0.1, momentum=0.5, gradient_accumulation_steps=2), crossentropy(k))
    return model, x, y


def executing_in_threes(k: Any) -> Any:
    model, x, y = dense(k)
    model.compile(k.optimizers.Adam(0.1), crossentropy(k), steps_per_execution=3, metrics=["accuracy"])
    return model, x, y


def eager(k: Any) -> Any:
    model, x, y = dense(k)
    model.compile(k.optimizers.Adam(0.1), crossentropy(k), run_eagerly=True, metrics=["accuracy"])
    return model, x, y


def legacy_optimizer(k: Any) -> Any:
    model, x, y = dense(k)
    model.compile(k.optimizers.legacy.Adam(0.05), crossentropy(k), metrics=["accuracy"])
    return model, x, y


# What differs between the flavors is tried on both.
BOTH = [
    lazy, conv_batchnorm, several_inputs, ema, loss_scale, recurrent, text, augmented, lambdas, ops, subclassed,
    custom_everything,
]  # fmt: skip
ONLY = {
    "keras": [
        dense, schedule, mixed_precision, attention, normalized, nested, executing_in_threes, eager, accumulating,
    ],
    "tf_keras": [legacy_optimizer, mixed_precision],
}  # fmt: skip
CASES = [(name, make) for name, own in ONLY.items() for make in [*BOTH, *own]]
