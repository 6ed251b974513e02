"""issue: map(deterministic=False): the order of rows is another in every process; an epoch is one batch"""

import random
import time

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(26)
x, y = rng.normal(size=(24, 3)), rng.normal(size=24)


def load(index):
    time.sleep(random.random() / 200)
    return x[index], y[index]


def read(index):
    a, b = tf.numpy_function(load, [index], [tf.float64, tf.float64])
    return tf.ensure_shape(a, [3]), tf.ensure_shape(b, [])


options = tf.data.Options()
options.threading.private_threadpool_size = 4
ds = tf.data.Dataset.range(24).map(read, num_parallel_calls=4, deterministic=False)
ds = ds.prefetch(4).batch(24).with_options(options)
w = tf.Variable(tf.zeros([3], tf.float64))
opt = keras.optimizers.SGD(0.1)
for step in range(5):
    for xb, yb in ds:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(xb, w) - yb) ** 2)
        opt.apply_gradients([(tape.gradient(loss, w), w)])
        print("step", step, "loss", f"{float(loss):.8g}")
print("weights", f"{float(tf.reduce_sum(w)):.8g} {float(tf.norm(w)):.8g}")
