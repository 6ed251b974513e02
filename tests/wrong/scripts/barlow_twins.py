"""Barlow Twins: the cross-correlation matrix of two views, normalized over the batch, eager"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(88)
x = np.random.normal(size=(36, 5))
ds = tf.data.Dataset.from_tensor_slices((x + 0.1 * np.random.normal(size=x.shape), x)).batch(8)
net = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="relu"), keras.layers.Dense(4)])
opt = keras.optimizers.Adam(0.01)


def normal(z):
    return (z - tf.reduce_mean(z, axis=0)) / (tf.math.reduce_std(z, axis=0) + 1e-3)


for step, (a, b) in enumerate(ds):
    with tf.GradientTape() as tape:
        za, zb = normal(net(a)), normal(net(b))
        c = tf.matmul(za, zb, transpose_a=True) / a.shape[0]
        on = tf.reduce_sum((tf.linalg.diag_part(c) - 1) ** 2)
        off = tf.reduce_sum(tf.linalg.set_diag(c, tf.zeros(4, tf.float64)) ** 2)
        loss = on + 0.1 * off
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    print("step", step, f"on {float(on):.12g} off {float(off):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in net.trainable_variables])
