"""a trimmed mean: the losses are sorted, the largest quarter is left out"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(49)
x, y = rng.normal(size=(35, 4)), rng.standard_cauchy(size=(35, 1))
w = tf.Variable(tf.zeros([4, 1], tf.float64))


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        losses = tf.sort(tf.reshape((xb @ w - yb) ** 2, [-1]))
        kept = tf.shape(losses)[0] * 3 // 4
        loss = tf.reduce_mean(losses[: tf.maximum(kept, 1)])
    g = tape.gradient(loss, w)
    w.assign_sub(0.1 * g)
    return loss, kept


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    loss, kept = train_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g} of {int(kept)} rows")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
