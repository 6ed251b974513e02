"""Two random operations of one seed in a tf.function."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(7)
x, y = np.random.normal(size=(35, 4)), np.random.normal(size=(35, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
w = tf.Variable(tf.ones((4, 1), tf.float64))


@tf.function
def step(xb, yb):
    a = tf.random.normal((8, 4), seed=3, dtype=tf.float64)
    b = tf.random.normal((8, 4), seed=3, dtype=tf.float64)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(xb + 0.1 * a, w) - tf.matmul(xb + 0.3 * b, w) - yb) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss


for xb, yb in ds.take(4):
    print(f"{float(step(xb, yb)):.12g}")
print(f"weights {float(tf.reduce_sum(w)):.12g}")
