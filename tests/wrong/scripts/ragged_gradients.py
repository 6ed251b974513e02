"""Ragged batches of a dataset: gradients of ragged targets, with respect to ragged rows and to their flat values."""

import numpy as np
import tensorflow as tf

rows = tf.ragged.constant([[1.0, 2.0], [3.0], [4.0, 5.0, 6.0], [], [7.0], [8.0, 9.0], [0.5]], dtype=tf.float64)
w = tf.Variable(np.ones((1, 1)))
for x in tf.data.Dataset.from_tensor_slices(rows).batch(4):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = tf.ragged.map_flat_values(lambda v: tf.matmul(v[:, None], w)[:, 0] ** 2, x)
        loss = tf.reduce_mean(tf.reduce_sum(x * x * w[0, 0], axis=1))
    gx, gw = tape.gradient(y, x), tape.gradient(y, w)
    print(gx.to_list(), f"{float(gw[0, 0]):.12g} {float(loss):.12g} {x.shape} {x.row_lengths().numpy()}")
    print(tape.gradient(loss, x.flat_values).numpy())
    w.assign_sub(0.001 * (gw + tape.gradient(loss, w)))
print(f"w {float(w[0, 0]):.12g}")
