"""AutoGraph's `for i in tf.range(rows)` with an `if` on each row, and a TensorArray of results"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(108)
x = rng.normal(size=(33, 3))
w = tf.Variable(rng.normal(size=3))


@tf.function(reduce_retracing=True)
def train_step(xb):
    rows = tf.shape(xb)[0]
    with tf.GradientTape() as tape:
        total = tf.constant(0.0, tf.float64)
        outputs = tf.TensorArray(tf.float64, rows)
        for i in tf.range(rows):
            value = tf.tensordot(xb[i], w, 1)
            if value > 0:
                total += value**2
            else:
                total -= value * tf.cast(i + 1, tf.float64)
            outputs = outputs.write(i, value)
        loss = total / tf.cast(rows, tf.float64)
    w.assign_sub(0.05 * tape.gradient(loss, w))
    return loss, outputs.stack()


for step, xb in enumerate(tf.data.Dataset.from_tensor_slices(x).batch(8)):
    loss, outputs = train_step(xb)
    print("step", step, f"loss {float(loss):.12g} positive {int((outputs.numpy() > 0).sum())} of {len(outputs)}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
