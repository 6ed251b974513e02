"""Stateful noise in a tf.function of any number of rows, the last batch smaller: one stream for all shapes."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
rows = np.random.RandomState(0).randn(18, 4)
weights = tf.Variable(np.ones((4, 2)))


@tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float64)])
def step(batch):
    noise = tf.random.normal(tf.shape(batch), dtype=tf.float64)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.matmul(batch + noise, weights) ** 2) / 18
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


for batch in tf.data.Dataset.from_tensor_slices(rows).batch(4):
    print("loss", f"{float(step(batch)):.12g}")
print("weights", f"{float(tf.reduce_sum(weights)):.12g} {float(tf.norm(weights)):.12g}")
