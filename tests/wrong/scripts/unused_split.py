"""The eager tape of a split of which one half goes unused."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(7)
x, y = np.random.normal(size=(35, 4)), np.random.normal(size=(35, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
w = tf.Variable(np.random.normal(size=(4, 4)))
for xb, yb in ds:
    with tf.GradientTape() as tape:
        h = tf.tanh(tf.matmul(xb, w))
        a, b = tf.split(h, 2, axis=1)
        loss = tf.reduce_mean((a - yb) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    print(f"{float(loss):.12g}")
print(f"weights {float(tf.reduce_sum(w)):.12g}")
