"""gradient accumulation in tf.Variables inside a tf.function; sums are divided by the rows seen at the end"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(45)
x, y = rng.normal(size=(51, 4)), rng.normal(size=(51, 1))
w = tf.Variable(rng.normal(size=(4, 1)))
gathered = tf.Variable(tf.zeros_like(w), trainable=False)
rows = tf.Variable(0, trainable=False)


@tf.function
def accumulate(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.nn.l2_loss(xb @ w - yb)
    gathered.assign_add(tape.gradient(loss, w))
    rows.assign_add(tf.shape(xb)[0])
    return loss


@tf.function
def apply():
    w.assign_sub(0.3 * gathered / tf.cast(rows, tf.float64))
    gathered.assign(tf.zeros_like(gathered))
    rows.assign(0)


for number, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(5), 1):
    loss = accumulate(xb, yb)
    print("micro", number, f"{float(loss):.12g}", "rows", int(rows))
    if number % 2 == 0 or len(xb) < 5:
        apply()
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
