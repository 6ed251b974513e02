"""Jacobians through a tf.function, a custom gradient of two outputs and eigh, outputs unused."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
x_all = np.random.randn(14, 3)
w = tf.Variable(np.random.randn(3, 4))


@tf.function
def features(x, w):
    h = tf.tanh(tf.matmul(x, w))
    return h, h**2, tf.reduce_sum(h, 1)


@tf.custom_gradient
def two(x):
    def grad(da, db):
        return 2.0 * da + 3.0 * x * db

    return (2.0 * x, 1.5 * x**2), grad


for x in tf.data.Dataset.from_tensor_slices(x_all).batch(5):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, w.read_value()])
        h, unused, _ = features(x, w)
        a, b = two(h)
        values, vectors = tf.linalg.eigh(tf.einsum("bi,bj->bij", h, h) + tf.linalg.diag(tf.range(4, dtype=tf.float64)))
        loss = tf.reduce_mean(b)
        rows = tf.reduce_sum(values**2, 1)
    jb = tape.batch_jacobian(a, x)
    jw = tape.jacobian(rows, w)
    je = tape.jacobian(rows, w, experimental_use_pfor=False)
    print(f"{float(tf.norm(jb)):.12g} {float(tf.norm(jw)):.12g} {float(tf.norm(je)):.12g} {jw.shape}")
    w.assign_sub(0.01 * (tf.reduce_mean(jw, 0) + tape.gradient(loss, w)))
print(f"weights {float(tf.reduce_sum(w)):.12g}")
