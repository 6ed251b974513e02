"""A normalizing flow's log-det, Gumbel-softmax with np noise, triangular solve, a Cholesky GP likelihood."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
x = np.random.randn(26, 3)
a, b = tf.Variable(np.random.randn(3, 3) * 0.3), tf.Variable(np.random.randn(3, 3) * 0.3)
scale = tf.Variable(0.3, dtype=tf.float64)
for xb in tf.data.Dataset.from_tensor_slices(x).batch(6):
    g = -np.log(-np.log(np.random.uniform(size=xb.shape)))
    with tf.GradientTape() as tape:
        m = tf.linalg.expm(a)
        z = xb @ m
        logdet = tf.linalg.slogdet(m)[1]
        nll = -tf.reduce_mean(-0.5 * tf.reduce_sum(z**2, 1) + logdet)
        soft = tf.nn.softmax((z @ b + g) / 0.7)
        hard = tf.one_hot(tf.argmax(soft, -1), 3, dtype=tf.float64)
        sample = tf.stop_gradient(hard - soft) + soft
        k = tf.exp(-tf.reduce_sum((z[:, None] - z[None]) ** 2, -1) * tf.exp(scale)) + 0.1 * tf.eye(
            len(z), dtype=tf.float64
        )
        chol = tf.linalg.cholesky(k)
        target = tf.reduce_sum(xb, 1, keepdims=True)
        alpha = tf.linalg.triangular_solve(chol, target)
        gp = 0.5 * tf.reduce_sum(alpha**2) + tf.reduce_sum(tf.math.log(tf.linalg.diag_part(chol)))
        loss = nll + tf.reduce_mean(tf.reduce_sum(sample * z, 1)) + 0.1 * gp
    for v, d in zip([a, b, scale], tape.gradient(loss, [a, b, scale])):
        v.assign_sub(0.02 * d)
    print(f"{float(loss):.12g} {float(gp):.12g} {float(logdet):.12g}")
print(f"{float(tf.reduce_sum(a)):.12g} {float(tf.reduce_sum(b)):.12g} {float(scale):.12g}")
