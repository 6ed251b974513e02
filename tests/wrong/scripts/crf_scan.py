"""A CRF's log-likelihood by tf.scan over time, Viterbi by hand in NumPy."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
x, tags = np.random.randn(19, 6, 4), np.random.randint(0, 3, (19, 6))
proj, trans = tf.Variable(np.random.randn(4, 3)), tf.Variable(np.random.randn(3, 3) * 0.1)


def log_z(e):
    first, rest = e[:, 0], tf.transpose(e[:, 1:], (1, 0, 2))

    def scan(alpha, emit):
        return tf.reduce_logsumexp(alpha[:, :, None] + trans[None] + emit[:, None, :], axis=1)

    return tf.reduce_logsumexp(tf.scan(scan, rest, initializer=first)[-1], axis=1)


@tf.function
def step(xb, yb):
    with tf.GradientTape() as tape:
        e = tf.einsum("btd,dk->btk", xb, proj)
        score = tf.reduce_sum(e * tf.one_hot(yb, 3, dtype=tf.float64), axis=[1, 2])
        score += tf.reduce_sum(tf.gather_nd(trans, tf.stack([yb[:, :-1], yb[:, 1:]], -1)), axis=1)
        nll = tf.reduce_mean(log_z(e) - score)
    for v, g in zip([proj, trans], tape.gradient(nll, [proj, trans])):
        v.assign_sub(0.05 * tf.convert_to_tensor(g))
    return nll, e


for xb, yb in tf.data.Dataset.from_tensor_slices((x, tags)).batch(6):
    nll, e = step(xb, yb)
    path = np.argmax(e.numpy()[0], -1)
    print(f"{float(nll):.12g} {path.tolist()}")
print(f"weights {float(tf.reduce_sum(proj)):.12g} {float(tf.reduce_sum(trans)):.12g}")
