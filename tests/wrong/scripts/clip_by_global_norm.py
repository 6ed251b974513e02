"""placements: clip_by_global_norm by hand, and a sign for the bias, with plain variables"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(32)
x, y = rng.normal(size=(33, 5)), rng.normal(size=(33, 2)) * 5
w = tf.Variable(rng.normal(size=(5, 2)))
b = tf.Variable(tf.zeros([2], tf.float64))


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.reduce_sum((xb @ w + b - yb) ** 2, axis=1))
    (dw, db), norm = tf.clip_by_global_norm(tape.gradient(loss, [w, b]), 1.0)
    w.assign_sub(0.1 * dw)
    b.assign_sub(0.01 * tf.sign(db))
    return loss, norm


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    loss, norm = train_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g} norm {float(norm):.12g}")
print("weights", *[f"{float(tf.reduce_sum(v)):.12g} {float(tf.norm(v)):.12g}" for v in [w, b]])
