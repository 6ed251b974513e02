"""triplet loss with batch-hard mining: the farthest of the class, the nearest of the others"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(47)
x = np.random.normal(size=(38, 6))
labels = np.random.randint(0, 3, 38)
ds = tf.data.Dataset.from_tensor_slices((x, labels)).batch(9)
net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)])
opt = keras.optimizers.Adam(0.01)


@tf.function
def train_step(xb, yb):
    same = tf.equal(yb[:, None], yb[None, :])
    with tf.GradientTape() as tape:
        z = net(xb, training=True)
        square = tf.reduce_sum(z * z, 1)
        distances = tf.maximum(square[:, None] - 2 * z @ tf.transpose(z) + square[None, :], 0.0)
        hardest_positive = tf.reduce_max(tf.where(same, distances, 0.0), axis=1)
        hardest_negative = tf.reduce_min(tf.where(same, tf.constant(1e3, tf.float64), distances), axis=1)
        losses = tf.nn.softplus(hardest_positive - hardest_negative + 0.5)
        loss = tf.reduce_mean(losses)
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    return loss, tf.reduce_mean(tf.cast(hardest_positive > hardest_negative, tf.float64))


for step, (xb, yb) in enumerate(ds):
    loss, bad = train_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g} bad {float(bad):.6f}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in net.trainable_variables])
