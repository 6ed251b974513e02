"""backtracking line search: trial losses on the batch decide how far to go, in Python"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(110)
x, y = rng.normal(size=(35, 4)), rng.normal(size=(35, 1))
w = tf.Variable(rng.normal(size=(4, 1)))


def loss_at(v, a, b):
    return tf.reduce_sum(tf.math.log(tf.cosh(a @ v - b)))


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    with tf.GradientTape() as tape:
        loss = loss_at(w, xb, yb)
    g = tape.gradient(loss, w)
    rate, tries = 1.0, 0
    while loss_at(w - rate * g, xb, yb) > loss - 0.3 * rate * tf.reduce_sum(g * g):
        rate, tries = rate / 2, tries + 1
    w.assign_sub(rate * g)
    print("step", step, f"loss {float(loss):.12g} rate {rate:.6g} after {tries} tries")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
