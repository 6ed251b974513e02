"""issue: z @ z.T, a similarity of all rows with all rows, in a tf.function"""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(4)
x = rng.normal(size=(34, 5))
labels = rng.randint(0, 3, 34)
w = tf.Variable(rng.normal(size=(5, 4)) * 0.4)


@tf.function
def train(xb, yb):
    with tf.GradientTape() as tape:
        z = tf.tanh(xb @ w)
        same = tf.cast(yb[:, None] == yb[None, :], tf.float64)
        loss = tf.reduce_mean(tf.square(z @ tf.transpose(z) - same))
    g = tape.gradient(loss, w)
    w.assign_sub(0.2 * g)
    return loss, tf.linalg.trace(z @ tf.transpose(z))


for step in range(5):
    rows = slice(8 * step, 8 * step + 8)
    loss, trace = train(tf.constant(x[rows]), tf.constant(labels[rows]))
    print("step", step, "loss %.12g trace %.12g" % (loss, trace))
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
