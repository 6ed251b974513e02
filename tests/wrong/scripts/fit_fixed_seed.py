"""issue: fit: a layer adds noise of a fixed seed to each row"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(76)
x = np.random.normal(size=(26, 4))


class Noise(keras.layers.Layer):
    def call(self, inputs, training=None):
        noise = keras.random.normal(keras.ops.shape(inputs), seed=42, dtype=inputs.dtype)
        return inputs + 0.3 * noise if training else inputs


model = keras.Sequential([keras.Input((4,)), Noise(), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(4)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit(x, x, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
