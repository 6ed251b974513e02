"""issue: fit: a layer counts the rows that it has seen, and divides by their number"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(61)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Count(keras.layers.Layer):
    def build(self, shape):
        self.rows = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.rows.assign_add(tf.cast(tf.shape(x)[0], "int64"))
        return x


counting = Count()
model = keras.Sequential([keras.Input((6,)), counting, keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
print("rows", int(counting.rows))
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
