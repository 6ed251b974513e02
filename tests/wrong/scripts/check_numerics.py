"""A script with tf.debugging.enable_check_numerics, whose callbacks replace TensorFlow's own execute."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
x, y = np.random.randn(25, 4), np.random.randn(25, 1)
w = tf.Variable(np.ones((4, 1)))
tf.debugging.enable_check_numerics()


@tf.function
def step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(xb, w) - yb) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss


for xb, yb in tf.data.Dataset.from_tensor_slices((x, y)).batch(7):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((tf.matmul(xb, w) - yb) ** 2) / 7
    w.assign_sub(0.1 * tape.gradient(loss, w))
    print(f"{float(loss):.12g} {float(step(xb, yb)):.12g} {float(tf.reduce_max(xb)):.12g}")
tf.debugging.disable_check_numerics()
print(f"{float(tf.reduce_sum(w)):.12g}")
