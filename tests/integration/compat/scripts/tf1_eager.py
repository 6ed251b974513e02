"""an optimizer of tf.compat.v1 in an eager tape loop over a dataset, and in a tf.function"""

import numpy as np
import tensorflow as tf

x = np.linspace(-1, 1, 66, dtype="float32").reshape(33, 2)
dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1] - x[:, 1:])).batch(8)
w = tf.Variable([[0.5], [0.5]])
optimizer = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
for inputs, targets in dataset:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(inputs, w) - targets))
    optimizer.apply_gradients([(tape.gradient(loss, w), w)])
    print("loss", float(loss))

adam = tf.compat.v1.train.AdamOptimizer(0.05)


@tf.function
def step(inputs, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(inputs, w) - targets))
    adam.apply_gradients([(tape.gradient(loss, w), w)])
    return loss


for inputs, targets in dataset:
    print("loss", float(step(inputs, targets)))
print(w.numpy().ravel())
