"""a tf.function with an input_signature of unknown rows; variance of the errors over the batch as the loss"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(71)
x, y = rng.normal(size=(35, 4)), rng.normal(size=(35, 1))
w = tf.Variable(rng.normal(size=(4, 1)))
b = tf.Variable(tf.zeros([1], tf.float64))
signature = [tf.TensorSpec([None, 4], tf.float64), tf.TensorSpec([None, 1], tf.float64)]


@tf.function(input_signature=signature)
def train_step(xb, yb):
    n = tf.cast(tf.shape(xb)[0], tf.float64)
    with tf.GradientTape() as tape:
        error = xb @ w + b - yb
        mean = tf.reduce_sum(error) / n
        loss = tf.reduce_sum((error - mean) ** 2) / (n - 1) + mean**2
    for v, g in zip([w, b], tape.gradient(loss, [w, b])):
        v.assign_sub(0.1 * g)
    return loss, mean


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    loss, mean = train_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g} mean {float(mean):.12g}")
print("weights", *[f"{float(tf.reduce_sum(v)):.12g} {float(tf.norm(v)):.12g}" for v in [w, b]])
