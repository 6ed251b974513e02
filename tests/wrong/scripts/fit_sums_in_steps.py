"""issue: fit: losses that are added up in two steps, of rows and then of columns or terms, and a kernel's norm"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(81)
x = np.random.normal(size=(28, 4))
y = x @ np.random.normal(size=(4, 2))


class Normed(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 2))

    def call(self, x):
        return x @ (self.kernel / tf.sqrt(tf.reduce_sum(self.kernel**2)))


def columns(y, predicted):
    return tf.reduce_sum(tf.reduce_sum((y - predicted) ** 2, axis=0))


def of_rows(y, predicted):
    return columns(y, predicted) / tf.cast(tf.shape(y)[0], y.dtype)


def terms(y, predicted):
    return tf.reduce_sum([tf.reduce_sum((y - predicted) ** 2), 0.5 * tf.reduce_sum(predicted**2)])


for loss in (columns, of_rows, terms):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), Normed()])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss)
    history = model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    print("loss", [f"{v:.9g}" for v in history.history["loss"]])
    print("weights", *[f"{float(tf.reduce_sum(w)):.9g} {float(tf.norm(w)):.9g}" for w in model.trainable_variables])
