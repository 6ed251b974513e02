"""Stateful noise in a loop over a dataset inside a tf.function, called for three epochs."""

import warnings

import keras
import numpy as np
import tensorflow as tf

warnings.filterwarnings("ignore", "Seed 7 from outer graph")

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(7)
x, y = np.random.normal(size=(35, 4)), np.random.normal(size=(35, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
w = tf.Variable(tf.ones((4, 1), tf.float64))


@tf.function
def epoch(data):
    total = tf.constant(0.0, tf.float64)
    for xb, yb in data:
        noise = tf.random.normal((4,), dtype=tf.float64)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.matmul(xb + 0.1 * noise, w) - yb) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        total += tf.reduce_sum(noise)
    return total


for _ in range(3):
    print(f"{float(epoch(ds)):.12g}")
print(f"weights {float(tf.reduce_sum(w)):.12g}")
