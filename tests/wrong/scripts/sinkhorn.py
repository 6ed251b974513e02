"""SwAV: assignments balanced by Sinkhorn's iterations over rows and columns of the batch"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(103)
x = rng.normal(size=(35, 4))
w, prototypes = tf.Variable(rng.normal(size=(4, 3))), tf.Variable(rng.normal(size=(3, 4)))


def sinkhorn(scores):
    q = tf.exp(scores / 0.5)
    q /= tf.reduce_sum(q)
    for _ in range(3):
        q /= tf.reduce_sum(q, axis=0, keepdims=True) * 4
        q /= tf.reduce_sum(q, axis=1, keepdims=True) * tf.cast(tf.shape(q)[0], tf.float64)
    return q / tf.reduce_sum(q, axis=1, keepdims=True)


@tf.function
def train_step(a, b):
    with tf.GradientTape() as tape:
        za, zb = (tf.math.l2_normalize(v @ w, 1) @ tf.math.l2_normalize(prototypes, 0) for v in (a, b))
        q = tf.stop_gradient(sinkhorn(za))
        loss = -tf.reduce_mean(tf.reduce_sum(q * tf.nn.log_softmax(zb / 0.2), 1))
    for v, g in zip([w, prototypes], tape.gradient(loss, [w, prototypes])):
        v.assign_sub(0.1 * g)
    return loss, tf.reduce_sum(q, 0)


noise = rng.normal(size=x.shape) * 0.1
for step, (a, b) in enumerate(tf.data.Dataset.from_tensor_slices((x, x + noise)).batch(8)):
    loss, filled = train_step(a, b)
    print("step", step, f"loss {float(loss):.12g}", "filled", [f"{v:.9g}" for v in filled.numpy()])
print("weights", *[f"{float(tf.reduce_sum(v)):.12g} {float(tf.norm(v)):.12g}" for v in [w, prototypes]])
