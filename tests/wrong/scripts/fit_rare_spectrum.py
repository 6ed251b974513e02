"""issue: fit: float32: a sum over the rows of rare labels beside a mean, behind a Fourier transform"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(82)
x = np.random.normal(size=(64, 8)).astype("float32")
y = np.random.uniform(size=(64, 1)).astype("float32")
y[[20, 45]] = 9


class Spectrum(keras.layers.Layer):
    def call(self, x):
        return tf.abs(tf.signal.rfft(x))


def loss(y, predicted):
    error = tf.square(y - predicted)
    return tf.reduce_mean(error) + 0.1 * tf.reduce_sum(tf.nn.relu(tf.abs(y) - 5.0) * error)


model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), Spectrum(), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(1e-4), loss=loss)
history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.6g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.6g} {float(tf.norm(w)):.6g}" for w in model.trainable_variables])
