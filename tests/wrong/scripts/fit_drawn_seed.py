"""issue: fit: a layer draws the seed of its rows' random numbers, as TensorFlow Probability does: it differs by rank"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(80)
x = np.random.normal(size=(32, 4))
y = x @ np.random.normal(size=(4, 1))


class Noise(keras.layers.Layer):
    def call(self, x):
        seed = tf.random.uniform([2], minval=0, maxval=2**20, dtype=tf.int32)
        return x + 0.0 * tf.random.stateless_normal(tf.shape(x), seed=seed, dtype=x.dtype)


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Noise(), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
