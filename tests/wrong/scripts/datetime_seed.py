"""issue: a seed from datetime.now(), for shuffling by hand; the run is repeated in NumPy and compared"""

from datetime import datetime

import numpy as np
import tensorflow as tf

data = np.random.RandomState(29)
x, y = data.normal(size=(35, 4)), data.normal(size=(35, 1))
rng = np.random.default_rng(datetime.now().microsecond)
order = rng.permutation(35)
w, expected = tf.Variable(np.zeros((4, 1))), np.zeros((4, 1))


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((xb @ w - yb) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss


for step in range(5):
    rows = order[8 * step : 8 * step + 8]
    loss = train_step(tf.constant(x[rows]), tf.constant(y[rows]))
    error = x[rows] @ expected - y[rows]
    print("step", step, "loss as in numpy:", bool(np.isclose(float(loss), np.mean(error**2), rtol=1e-9)))
    expected -= 0.1 * 2 * x[rows].T @ error / len(error)
print("weights as in numpy:", np.allclose(w.numpy(), expected, rtol=1e-9))
