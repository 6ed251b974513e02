"""a transpose makes rows features: a Dense layer mixes a fixed batch's rows (MLP-Mixer over the batch)"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(118)
x, y = rng.normal(size=(40, 4)), rng.normal(size=(40, 4))
mix, w = tf.Variable(rng.normal(size=(8, 8)) * 0.3), tf.Variable(rng.normal(size=(4, 4)) * 0.3)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        mixed = tf.transpose(tf.matmul(tf.transpose(xb), mix))
        out = tf.reshape(tf.reshape(mixed, [-1]), [8, 4]) @ w
        loss = tf.reduce_mean((out - yb) ** 2)
    for v, g in zip([mix, w], tape.gradient(loss, [mix, w])):
        v.assign_sub(0.2 * g)
    return loss


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    print("step", step, "loss", f"{float(train_step(xb, yb)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(v)):.12g} {float(tf.norm(v)):.12g}" for v in [mix, w]])
