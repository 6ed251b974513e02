"""Standard models, each compiled, with a batch. `zoo.py NAME [epochs]` trains one: plain Keras, for `hfdt run` too.

Those of DEEP take long to build and trace, and are too deep for some picklers. Of them the tests run MobileNetV2; the
others stand in SHORTENED with fewer blocks, and are run whole by hand.
"""

import functools
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

ROWS, BATCH, CLASSES = 32, 16, 10
layers = keras.layers
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def images(size=32):
    """(x, y) of CIFAR-10 where it is at hand; else noise."""
    home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    if not (home / ".complete").exists():
        rng = np.random.default_rng(0)
        return rng.random((ROWS, size, size, 3), "float32"), rng.integers(0, CLASSES, ROWS)
    (x, y), _ = keras.datasets.cifar10.load_data()
    return tf.image.resize(x[:ROWS] / 255.0, (size, size), "nearest").numpy().astype("float32"), y[:ROWS, 0]


def tokens(length):
    rng = np.random.default_rng(0)
    return rng.integers(0, 500, (ROWS, length)), rng.integers(0, CLASSES, ROWS)


def compiled(inputs, outputs):
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), LOSS, metrics=["accuracy"])
    return model


def resnet20():
    def convolved(x, filters, stride=1, relu=True):
        x = layers.Conv2D(filters, 3, stride, "same", kernel_regularizer=keras.regularizers.L2(1e-4))(x)
        x = layers.BatchNormalization()(x)
        return layers.ReLU()(x) if relu else x

    inputs = keras.Input((32, 32, 3))
    x = convolved(inputs, 16)
    for filters in (16, 32, 64):
        for block in range(3):
            stride = 2 if filters > 16 and block == 0 else 1
            y = convolved(convolved(x, filters, stride), filters, relu=False)
            x = layers.ReLU()((layers.Conv2D(filters, 1, 2)(x) if stride == 2 else x) + y)
    return compiled(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))), *images()


def unet():
    inputs = keras.Input((32, 32, 3))
    x, skipped = inputs, []
    for filters in (8, 16):
        x = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", activation="relu")(x))
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    for filters, skip in zip((16, 8), reversed(skipped), strict=True):
        x = layers.Conv2DTranspose(filters, 2, 2)(x)
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(layers.Concatenate()([x, skip]))
    x = layers.UpSampling2D(2, interpolation="bilinear")(layers.MaxPooling2D()(x))
    x, (given, _) = layers.Conv2D(3, 1)(x), images()
    return compiled(inputs, x), given, (given.mean(-1) * 2.99).astype(int)


def lstm():
    inputs = keras.Input((20,), dtype="int32")
    x = layers.Embedding(500, 16, mask_zero=True)(inputs)
    return compiled(inputs, layers.Dense(CLASSES)(layers.Bidirectional(layers.LSTM(16))(x))), *tokens(20)


def transformer():
    inputs = keras.Input((32,), dtype="int32")
    x = layers.Embedding(500, 32)(inputs)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(32)(layers.Dense(128, "gelu")(x)))
    return compiled(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x))), *tokens(32)


class VAE(keras.Model):
    """Its noise comes with the data, so that two runs can be compared."""

    def __init__(self):
        super().__init__()
        self.encode = keras.Sequential([layers.Flatten(), layers.Dense(64, "relu"), layers.Dense(16)])
        self.decode = keras.Sequential([layers.Dense(64, "relu"), layers.Dense(3072)])
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        given, noise = inputs
        mean, log_variance = tf.split(self.encode(given), 2, axis=-1)
        return mean, log_variance, self.decode(mean + noise * tf.exp(log_variance / 2))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_variance, made = self(data[0])
            flat = tf.reshape(data[0][0], tf.shape(made))
            divergence = 0.5 * tf.reduce_sum(mean**2 + tf.exp(log_variance) - 1 - log_variance, axis=-1)
            loss = tf.reduce_mean(tf.reduce_sum((flat - made) ** 2, axis=-1)) + tf.reduce_mean(divergence)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    @property
    def metrics(self):
        return [self.tracker]


def vae():
    x, y = images()
    inputs = x, np.random.default_rng(0).normal(size=(ROWS, 8)).astype("float32")
    model = VAE()
    model([part[:1] for part in inputs])
    model.compile(keras.optimizers.SGD(1e-4))
    return model, inputs, y


def application(make, size=32):
    def made():
        inputs = keras.Input((size, size, 3))
        base = make(include_top=False, weights=None, pooling="avg", input_tensor=inputs)
        for layer in base.layers:  # drawn anew in every run: two runs' losses would not be comparable
            if isinstance(layer, layers.Dropout):
                layer.rate = 0.0
        return compiled(inputs, layers.Dense(CLASSES)(base.output)), *images(size)

    return made


def shortened(name):
    """Keras's builder of a model in `name`, with every kind of block and connection, and with fewer repetitions."""

    def make(**kwargs):
        from keras.src.applications import densenet, efficientnet, resnet  # these builders are not public

        if name == "efficientnet":
            return efficientnet.EfficientNet(1.0, 0.5, 32, **kwargs)
        if name == "densenet":
            return densenet.DenseNet([2, 2, 2, 2], **kwargs)
        return resnet.ResNet(functools.partial(two_stages, resnet), False, True, **kwargs)

    return application(make)


def two_stages(resnet, x):
    """The first stages of ResNet-50, with one identity block each instead of two and three."""
    x = resnet.stack_residual_blocks_v1(x, 64, 2, stride1=1, name="conv2")
    return resnet.stack_residual_blocks_v1(x, 128, 2, name="conv3")


QUICK = {"lstm": lstm, "transformer": transformer, "vae": vae, "unet": unet, "resnet20": resnet20}
DEEP = {
    name: application(getattr(keras.applications, name))
    for name in ("MobileNetV2", "EfficientNetB0", "DenseNet121", "ResNet50")
}
SHORTENED = {name: shortened(name) for name in ("efficientnet", "densenet", "resnet")}
ALL = {**QUICK, **DEEP, **SHORTENED}


def main(name, epochs="1"):
    keras.utils.set_random_seed(1)
    model, x, y = ALL[name]()
    history = model.fit(x, y, BATCH, int(epochs), shuffle=False, verbose=0, steps_per_epoch=1)
    print(f"zoo {name} {history.history['loss'][0]!r}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
