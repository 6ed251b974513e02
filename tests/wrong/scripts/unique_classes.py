"""rows are weighted by how often their class occurs in the batch (tf.unique_with_counts)"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(51)
x = rng.normal(size=(35, 4))
y = rng.integers(0, 3, 35)
w = tf.Variable(rng.normal(size=(4, 3)) * 0.2)


@tf.function
def train_step(xb, yb):
    classes, index, counts = tf.unique_with_counts(yb)
    weights = 1.0 / tf.cast(tf.gather(counts, index), tf.float64)
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(yb, xb @ w)
        loss = tf.reduce_sum(weights * losses) / tf.cast(tf.size(classes), tf.float64)
    w.assign_sub(0.2 * tape.gradient(loss, w))
    return loss, tf.size(classes)


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    loss, classes = train_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g} classes {int(classes)}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
