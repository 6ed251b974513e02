"""minimax: only the worst row counts (reduce_max), and a product over rows is printed"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(97)
x, y = rng.normal(size=(35, 3)), rng.normal(size=(35, 1))
w = tf.Variable(tf.zeros([3, 1], tf.float64))
for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    with tf.GradientTape() as tape:
        losses = tf.reduce_sum((xb @ w - yb) ** 2, 1)
        loss = tf.reduce_max(losses)
    w.assign_sub(0.05 * tape.gradient(loss, w))
    worst = int(tf.argmax(losses))
    print("step", step, f"loss {float(loss):.12g} row {worst} product {float(tf.reduce_prod(losses + 0.5)):.12g}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
