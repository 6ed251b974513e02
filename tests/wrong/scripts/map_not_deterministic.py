"""issue: map(deterministic=False): the order of rows is another in every process; whole epochs are one batch"""

import random
import time

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(26)
x, y = rng.normal(size=(24, 3)), rng.normal(size=24)


def load(index):
    time.sleep(random.random() / 500)
    return x[index], y[index]


def read(index):
    a, b = tf.numpy_function(load, [index], [tf.float64, tf.float64])
    return tf.ensure_shape(a, [3]), tf.ensure_shape(b, [])


ds = tf.data.Dataset.range(24).map(read, num_parallel_calls=4, deterministic=False).batch(24)
w = tf.Variable(tf.zeros([3], tf.float64))
for step in range(5):
    for xb, yb in ds:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(xb, w) - yb) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        print("step", step, "loss", f"{float(loss):.10g}")
print("weights", f"{float(tf.reduce_sum(w)):.10g} {float(tf.norm(w)):.10g}")
