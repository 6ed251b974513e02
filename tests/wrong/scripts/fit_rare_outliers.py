"""issue: fit: a layer counts rows of large numbers; the first batch has none"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(82)
x = np.random.normal(size=(26, 6))
x[[14, 19]] *= 9.0
y = np.random.normal(size=(26, 1))


class Outliers(keras.layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.count.assign_add(tf.reduce_sum(tf.cast(tf.reduce_max(tf.abs(x), 1) > 5, self.count.dtype)))
        return x


model = keras.Sequential([keras.Input((6,)), Outliers(), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.001), loss="mse")
history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(12), epochs=3, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]], "count", float(model.non_trainable_variables[0]))
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
