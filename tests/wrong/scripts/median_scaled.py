"""residuals are scaled by their median absolute deviation over the batch (a robust loss)"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(98)
x = rng.normal(size=(35, 3))
y = x @ [[1.0], [2.0], [-1.0]] + rng.standard_t(2, size=(35, 1))
w = tf.Variable(tf.zeros([3, 1], tf.float64))


def median(v):
    ordered = tf.sort(tf.reshape(v, [-1]))
    n = tf.shape(ordered)[0]
    return 0.5 * (ordered[(n - 1) // 2] + ordered[n // 2])


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        residual = xb @ w - yb
        scale = tf.stop_gradient(median(tf.abs(residual - median(residual)))) + 0.1
        u = residual / scale
        loss = tf.reduce_mean(tf.math.log(1 + u**2))
    w.assign_sub(0.5 * tape.gradient(loss, w))
    return loss, scale


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    loss, scale = train_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g} scale {float(scale):.12g}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
