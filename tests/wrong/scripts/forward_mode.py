"""Hessian-vector products by a ForwardAccumulator around a tape."""

import numpy as np
import tensorflow as tf

rows = np.random.RandomState(0).randn(24, 4)
weights = tf.Variable(np.ones((4, 1)))
for batch in tf.data.Dataset.from_tensor_slices(rows).batch(5):
    direction = tf.ones_like(weights)
    with tf.autodiff.ForwardAccumulator(weights, direction) as accumulator, tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(batch, weights) ** 4)
    gradient = tape.gradient(loss, weights)
    curvature = tf.reduce_sum(accumulator.jvp(loss))
    weights.assign_sub(0.01 * gradient / (1 + tf.abs(curvature)))
    print("loss", f"{float(loss):.12g}")
print("weights", f"{float(tf.reduce_sum(weights)):.12g} {float(tf.norm(weights)):.12g}")
