"""issue: a tf.function of a model that a tape differentiates, called without a tape for validation; no optimizer"""

import numpy as np
import tensorflow as tf

draws = np.random.RandomState(0)
kernel = tf.Variable(draws.randn(4, 3))
batches = tf.data.Dataset.from_tensor_slices((draws.randn(22, 4), draws.randn(22, 3))).batch(4)


@tf.function
def model(x):
    return tf.nn.tanh(tf.matmul(x, kernel))


for x, y in batches:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
    print("loss", f"{float(loss):.12g}")
for x, y in batches:
    print("validation", f"{float(tf.reduce_mean((model(x) - y) ** 2)):.12g}")
print("weights", f"{float(tf.reduce_sum(kernel)):.12g} {float(tf.norm(kernel)):.12g}")
