"""a detector's focal loss, divided by the number of positives in the batch, at least one"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(94)
x = rng.normal(size=(35, 6, 3))
y = (rng.random((35, 6)) < 0.15).astype("float64")
w = tf.Variable(rng.normal(size=(3,)) * 0.3)


@tf.function
def train_step(xb, yb):
    positives = tf.maximum(tf.reduce_sum(yb), 1.0)
    with tf.GradientTape() as tape:
        logits = tf.einsum("bkd,d->bk", xb, w)
        p = tf.sigmoid(logits)
        pt = yb * p + (1 - yb) * (1 - p)
        loss = -tf.reduce_sum((1 - pt) ** 2 * tf.math.log(pt + 1e-9)) / positives
    w.assign_sub(0.05 * tape.gradient(loss, w))
    return loss, positives


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    loss, positives = train_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g} positives {int(positives)}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
