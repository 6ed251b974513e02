"""rows with NaN targets are masked with tf.where; in one batch all rows of a rank are NaN"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(89)
x, y = rng.normal(size=(33, 4)), rng.normal(size=(33, 1))
y[[1, 5, 8, 9, 10, 11, 20, 30]] = np.nan
w = tf.Variable(rng.normal(size=(4, 1)))


@tf.function
def train_step(xb, yb):
    valid = tf.math.is_finite(yb)
    target = tf.where(valid, yb, tf.zeros_like(yb))
    with tf.GradientTape() as tape:
        error = tf.where(valid, xb @ w - target, 0.0)
        loss = tf.math.divide_no_nan(tf.reduce_sum(error**2), tf.reduce_sum(tf.cast(valid, tf.float64)))
    w.assign_sub(0.2 * tape.gradient(loss, w))
    return loss, tf.math.count_nonzero(valid)


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    loss, valid = train_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g} valid {int(valid)}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
