"""placements: codes assigned in the step by top_k, an integer count, and v.assign(v - ...)"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(37)
x = rng.normal(size=(35, 4))
w = tf.Variable(rng.normal(size=(4, 3)) * 0.5)
codes = tf.Variable(rng.normal(size=(6, 3)))
used = tf.Variable(tf.zeros([6], tf.int64))


@tf.function
def train_step(xb):
    with tf.GradientTape() as tape:
        z = xb @ w
        scores = -tf.reduce_sum((z[:, None] - codes[None]) ** 2, -1)
        values, nearest = tf.math.top_k(scores, k=2)
        loss = -tf.reduce_mean(values)
    dw, dc = tape.gradient(loss, [w, codes])
    w.assign(w - 0.1 * dw)
    codes.assign(codes - 0.2 * dc)
    used.assign_add(tf.math.bincount(tf.reshape(nearest, [-1]), minlength=6, dtype=tf.int64))
    return loss


for step, xb in enumerate(tf.data.Dataset.from_tensor_slices(x).batch(8)):
    print("step", step, "loss", f"{float(train_step(xb)):.12g}", "used", used.numpy().tolist())
print("weights", *[f"{float(tf.reduce_sum(v)):.12g} {float(tf.norm(v)):.12g}" for v in [w, codes]])
