"""issue: v.assign(v - lr * g), the plainest of all loops"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(9)
x = rng.normal(size=(35, 4))
y = x @ rng.normal(size=(4, 1)) + 0.1 * rng.normal(size=(35, 1))
w, b = tf.Variable(tf.zeros([4, 1], tf.float64)), tf.Variable(tf.zeros([], tf.float64))
lr = 0.1
for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(xb @ w + b - yb))
    for v, g in zip([w, b], tape.gradient(loss, [w, b])):
        v.assign(v - lr * g)
    print("step", step, "loss", f"{loss.numpy():.12g}", "b", f"{b.numpy():.12g}")
print("weights", *[f"{float(tf.reduce_sum(v)):.12g} {float(tf.norm(v)):.12g}" for v in [w, b]])
