"""a loss with the inverse and the log-determinant of the batch's covariance, by Cholesky and QR"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(87)
x = rng.normal(size=(39, 5))
w = tf.Variable(rng.normal(size=(5, 3)) * 0.5)


@tf.function
def train_step(xb):
    with tf.GradientTape() as tape:
        z = tf.tanh(xb @ w)
        z -= tf.reduce_mean(z, 0)
        cov = tf.matmul(z, z, transpose_a=True) / tf.cast(tf.shape(z)[0], tf.float64) + 0.1 * tf.eye(
            3, dtype=tf.float64
        )
        q, r = tf.linalg.qr(z)
        loss = (
            -tf.linalg.logdet(cov)
            + tf.linalg.trace(tf.linalg.inv(cov))
            + 0.1 * tf.reduce_sum(tf.abs(tf.linalg.diag_part(r)))
        )
    w.assign_sub(0.02 * tape.gradient(loss, w))
    whitened = tf.linalg.triangular_solve(tf.linalg.cholesky(cov), tf.transpose(z))
    return loss, tf.reduce_sum(whitened**4), tf.reduce_max(q)


for step, xb in enumerate(tf.data.Dataset.from_tensor_slices(x).batch(8)):
    print("step", step, "loss %.10g kurtosis %.10g q %.10g" % tuple(float(v) for v in train_step(xb)))
print("weights", f"{float(tf.reduce_sum(w)):.10g} {float(tf.norm(w)):.10g}")
