"""A script with tf.switch_case in a tf.function, its branches draw random numbers."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
x = np.random.randn(20, 4)
w = tf.Variable(np.ones((4, 2)))


@tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float64), tf.TensorSpec((), tf.int32)])
def step(batch, kind):
    noisy = tf.switch_case(
        kind,
        [
            lambda: batch + tf.random.normal(tf.shape(batch), dtype=tf.float64),
            lambda: batch * tf.random.uniform(tf.shape(batch), dtype=tf.float64),
            lambda: tf.roll(batch, 1, 0),
        ],
    )
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(noisy, w) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss


for i, batch in enumerate(tf.data.Dataset.from_tensor_slices(x).batch(6).repeat(2)):
    print(f"{i} {float(step(batch, tf.constant(i % 3))):.12g}")
print(f"weights {float(tf.reduce_sum(w)):.12g}")
