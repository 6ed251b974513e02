"""issue: fit: a layer keeps a running mean in a plain tf.Variable"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(67)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))

mean = tf.Variable(tf.zeros(6, "float64"))


class Centre(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
        return x


model = keras.Sequential([keras.Input((6,)), Centre(), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
print("mean", f"{float(tf.norm(mean)):.12g}")
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
