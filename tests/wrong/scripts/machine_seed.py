"""a seed from the process (os.getpid, uuid4, os.urandom); the run is repeated in NumPy and compared"""

import os
import uuid

import numpy as np
import tensorflow as tf

data = np.random.RandomState(114)
x, y = data.normal(size=(35, 4)), data.normal(size=(35, 1))
seed = (os.getpid() + uuid.uuid4().int + int.from_bytes(os.urandom(4), "big")) % 2**32
start = np.random.default_rng(seed).normal(size=(4, 1))
w, expected = tf.Variable(start), start.copy()


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((xb @ w - yb) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    loss = train_step(xb, yb)
    rows = slice(8 * step, 8 * step + 8)
    error = x[rows] @ expected - y[rows]
    print("step", step, "loss as in numpy:", bool(np.isclose(float(loss), np.mean(error**2), rtol=1e-9)))
    expected -= 0.1 * 2 * x[rows].T @ error / len(error)
print("weights as in numpy:", np.allclose(w.numpy(), expected, rtol=1e-9))
