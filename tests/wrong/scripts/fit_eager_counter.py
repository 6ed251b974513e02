"""issue: fit: a model that runs eagerly counts its steps in Python"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(81)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Counting(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def call(self, x, training=False):
        if training:
            self.steps += 1
        return x * (1.0 + 0.01 * self.steps)


counting = Counting()
model = keras.Sequential([keras.Input((6,)), counting, keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", run_eagerly=True)
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
print("loss", [f"{v:.6g}" for v in history.history["loss"]], counting.steps)
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
