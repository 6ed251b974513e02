"""issue: an exponential moving average of the batch's mean and variance, assigned in an eager step and used in it"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(16)
x, y = rng.normal(2.0, 3.0, size=(35, 5)), rng.normal(size=(35, 1))
w = tf.Variable(rng.normal(size=(5, 1)) * 0.3)
mean = tf.Variable(tf.zeros([5], tf.float64), trainable=False)
var = tf.Variable(tf.ones([5], tf.float64), trainable=False)
for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    mean.assign(0.8 * mean + 0.2 * tf.reduce_mean(xb, 0))
    var.assign(0.8 * var + 0.2 * tf.math.reduce_variance(xb, 0))
    with tf.GradientTape() as tape:
        normal = (xb - mean) / tf.sqrt(var + 1e-6)
        loss = tf.reduce_mean((normal @ w - yb) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    print("step", step, f"loss {float(loss):.12g}", "mean", [f"{v:.12g}" for v in mean.numpy()])
print("weights", *[f"{float(tf.reduce_sum(v)):.12g} {float(tf.norm(v)):.12g}" for v in [w, mean, var]])
