"""negatives by tf.roll: every row against the next one, the last against the first"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(68)
x = rng.normal(size=(35, 4))
w = tf.Variable(rng.normal(size=(4, 3)) * 0.5)


@tf.function
def train_step(xb):
    with tf.GradientTape() as tape:
        z = tf.math.l2_normalize(xb @ w, -1)
        against_next = tf.reduce_sum(z * tf.roll(z, shift=1, axis=0), -1)
        loss = tf.reduce_mean(tf.nn.softplus(4.0 * against_next))
    w.assign_sub(0.3 * tape.gradient(loss, w))
    return loss, against_next


for step, xb in enumerate(tf.data.Dataset.from_tensor_slices(x).batch(8)):
    loss, values = train_step(xb)
    print("step", step, f"loss {float(loss):.12g}", "first and last", f"{values[0]:.12g} {values[-1]:.12g}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
