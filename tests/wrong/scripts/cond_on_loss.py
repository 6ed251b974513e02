"""placements: tf.cond on the loss chooses between two updates"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(40)
x, y = rng.normal(size=(35, 4)), rng.normal(size=(35, 1))
y[8:16] *= 10
w = tf.Variable(tf.zeros([4, 1], tf.float64))
skipped = tf.Variable(0)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.abs(xb @ w - yb))
    g = tape.gradient(loss, w)

    def update():
        w.assign_sub(0.02 * g)
        return tf.constant(1)

    def skip():
        skipped.assign_add(1)
        return tf.constant(0)

    return loss, tf.cond(loss < 12.0, update, skip)


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    loss, done = train_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g}", "updated" if done == 1 else "skipped")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}", int(skipped))
