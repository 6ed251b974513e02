"""A script with tf.config.run_functions_eagerly, a tf.function step with side effects."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
tf.config.run_functions_eagerly(True)
x, y = np.random.randn(23, 3), np.random.randint(0, 3, 23)
w = tf.Variable(np.random.randn(3, 3))
seen = []


@tf.function
def step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=yb, logits=tf.matmul(xb, w)))
    g = tape.gradient(loss, w)
    seen.append(float(tf.norm(g)))
    if loss > 1.0:
        w.assign_sub(0.5 * g)
    else:
        w.assign_sub(0.1 * g)
    return loss


for xb, yb in tf.data.Dataset.from_tensor_slices((x, y)).batch(5).prefetch(2):
    print(f"{float(step(xb, yb)):.12g} {seen[-1]:.12g}")
tf.config.run_functions_eagerly(False)
print(f"{float(tf.reduce_sum(w)):.12g}")
