"""hand-sliced tensors X[i:i+8] in an eager function; RMSE; the rest of the rows is the last batch"""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(73)
X, Y = tf.constant(rng.normal(size=(34, 4))), tf.constant(rng.normal(size=(34, 1)))
w = tf.Variable(tf.zeros([4, 1], tf.float64))
opt = keras.optimizers.Adam(0.05)


def train_step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.sqrt(tf.reduce_mean((xb @ w - yb) ** 2))
    opt.apply_gradients([(tape.gradient(loss, w), w)])
    return loss


losses = []
for i in range(0, X.shape[0], 8):
    losses.append(train_step(X[i : i + 8], Y[i : i + 8]))
print("losses", [f"{v:.12g}" for v in losses], f"mean {np.mean(losses):.12g}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
