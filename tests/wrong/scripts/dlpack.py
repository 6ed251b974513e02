"""A tensor handed to another library by DLPack."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(7)
x, y = np.random.normal(size=(35, 4)), np.random.normal(size=(35, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
w = tf.Variable(tf.ones((4, 1), tf.float64))
for xb, yb in ds:
    with tf.GradientTape() as tape:
        h = tf.matmul(xb, w)
        loss = tf.reduce_mean((h - yb) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    r = tf.experimental.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(tf.nn.relu(h)))
    print(f"{float(loss):.12g} {float(tf.reduce_sum(r)):.12g}", r.shape)
print(f"weights {float(tf.reduce_sum(w)):.12g}")
