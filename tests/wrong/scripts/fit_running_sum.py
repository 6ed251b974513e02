"""issue: fit: a layer keeps a running sum over rows"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(68)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Total(keras.layers.Layer):
    def build(self, shape):
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.total.assign_add(tf.reduce_sum(x))
        return x


total = Total()
model = keras.Sequential([keras.Input((6,)), total, keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
print("total", f"{float(total.total):.12g}")
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
