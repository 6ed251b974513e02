"""per-sample weights, normalized by their sum over the batch, and boosted by the losses of the step"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(91)
x, y, weight = rng.normal(size=(35, 4)), rng.integers(0, 2, (35, 1)).astype("float64"), rng.random(35)
w = tf.Variable(rng.normal(size=(4, 1)) * 0.3)


@tf.function
def train_step(xb, yb, sw):
    with tf.GradientTape() as tape:
        losses = tf.squeeze(tf.nn.sigmoid_cross_entropy_with_logits(yb, xb @ w), -1)
        boosted = sw * tf.stop_gradient(tf.nn.softmax(losses, axis=0))
        loss = tf.reduce_sum(losses * boosted) / tf.reduce_sum(boosted)
    w.assign_sub(0.5 * tape.gradient(loss, w))
    return loss, boosted


for step, batch in enumerate(tf.data.Dataset.from_tensor_slices((x, y, weight)).batch(8)):
    loss, boosted = train_step(*batch)
    print("step", step, f"loss {float(loss):.12g}", "heaviest row", int(tf.argmax(boosted)))
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
