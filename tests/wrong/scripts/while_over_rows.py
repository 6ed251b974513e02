"""a tf.while_loop over the rows: each row's state begins with the row before"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(59)
x = rng.normal(size=(35, 3))
w = tf.Variable(rng.normal(size=(3, 3)) * 0.4)


@tf.function
def train_step(xb):
    with tf.GradientTape() as tape:
        rows = tf.shape(xb)[0]

        def body(i, state, loss):
            state = tf.tanh(tf.linalg.matvec(w, state) + xb[i])
            return i + 1, state, loss + tf.reduce_sum(state**2)

        zero = tf.constant(0.0, tf.float64)
        _, state, loss = tf.while_loop(lambda i, *_: i < rows, body, (0, tf.zeros([3], tf.float64), zero))
    w.assign_sub(0.05 * tape.gradient(loss, w))
    return loss, state


for step, xb in enumerate(tf.data.Dataset.from_tensor_slices(x).batch(8)):
    loss, state = train_step(xb)
    print("step", step, f"loss {float(loss):.12g}", "state", [f"{v:.12g}" for v in state.numpy()])
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
