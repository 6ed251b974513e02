"""issue: a mean over the tokens that a mask keeps, in a tf.function"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(2)
lengths = rng.integers(1, 7, 35)
x = rng.normal(size=(35, 6, 3))
y = x.sum(2)
mask = (np.arange(6) < lengths[:, None]).astype("float64")
data = tf.data.Dataset.from_tensor_slices((x, y, mask)).batch(8)
w = tf.Variable(rng.normal(size=(3, 1)) * 0.3)
b = tf.Variable(tf.zeros([1], tf.float64))


@tf.function
def step_fn(xb, yb, mb):
    with tf.GradientTape() as tape:
        out = tf.squeeze(tf.tensordot(xb, w, 1) + b, -1)
        loss = tf.reduce_sum(tf.square(out - yb) * mb) / tf.reduce_sum(mb)
    dw, db = tape.gradient(loss, [w, b])
    w.assign_sub(0.1 * dw)
    b.assign_sub(0.1 * db)
    return loss


for step, batch in enumerate(data):
    print(f"step {step}: masked loss {step_fn(*batch).numpy():.12g}")
print("weights", *[f"{float(tf.reduce_sum(v)):.12g} {float(tf.norm(v)):.12g}" for v in [w, b]])
