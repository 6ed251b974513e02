"""SparseTensor batches of a dataset through sparse_dense_matmul."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
dense = np.random.randn(18, 10) * (np.random.rand(18, 10) < 0.3)
y = np.random.randn(18, 1)
data = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(dense), y)).batch(7)
w = tf.Variable(np.ones((10, 1)))
b = tf.Variable(np.zeros((1,)))


@tf.function
def step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.sparse.sparse_dense_matmul(xb, w) + b - yb) ** 2)
    gw, gb = tape.gradient(loss, [w, b])
    w.assign_sub(0.1 * gw)
    b.assign_sub(0.1 * gb)
    return loss


for xb, yb in data:
    print(f"{float(step(xb, yb)):.12g} {xb.dense_shape.numpy()}")
for xb, yb in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.sparse.sparse_dense_matmul(xb, w) + b - yb) ** 2)
    gw, gb = tape.gradient(loss, [w, b])
    w.assign_sub(0.1 * gw)
    b.assign_sub(0.1 * gb)
    print(f"{float(loss):.12g}")
print(f"w {float(tf.reduce_sum(w)):.12g} {float(b[0]):.12g}")
