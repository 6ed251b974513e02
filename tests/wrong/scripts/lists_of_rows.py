"""batches as Python lists, collected row by row and stacked; log of a mean as the loss"""

import random

import numpy as np
import tensorflow as tf

random.seed(75)
pairs = [([random.gauss(0, 1) for _ in range(3)], random.gauss(0, 1)) for _ in range(33)]
w = tf.Variable(np.zeros(3))
pending, step = [], 0
for number, pair in enumerate(pairs, 1):
    pending.append(pair)
    if len(pending) < 7 and number < len(pairs):
        continue
    xb = tf.constant([a for a, _ in pending], tf.float64)
    yb = tf.stack([tf.constant(b, tf.float64) for _, b in pending])
    with tf.GradientTape() as tape:
        loss = tf.math.log(tf.reduce_mean((tf.linalg.matvec(xb, w) - yb) ** 2))
    w.assign_sub(0.1 * tape.gradient(loss, w))
    print(f"step {step}: {len(pending)} rows, loss {loss.numpy():.12g}")
    pending, step = [], step + 1
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
