"""issue: fit: tf.config.run_functions_eagerly, and a layer counts its steps in Python"""

import warnings

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(83)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Growing(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def call(self, x, training=False):
        if training:
            self.steps += 1
        return x * (1.0 + 0.01 * self.steps)


warnings.simplefilter("ignore")  # tf.data is not run eagerly
tf.config.run_functions_eagerly(True)
model = keras.Sequential([keras.Input((6,)), Growing(), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
