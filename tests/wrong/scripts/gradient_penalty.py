"""WGAN-GP: second-order gradients through the norm of the critic's gradient by its input"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(84)
real = np.random.normal(1.0, 0.5, size=(35, 3))
fake = np.random.normal(size=(35, 3))
mix = np.random.rand(35, 1)
ds = tf.data.Dataset.from_tensor_slices((real, fake, mix)).batch(8)
critic = keras.Sequential([keras.Input((3,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.Adam(0.01, beta_1=0.5)


@tf.function
def train_step(r, f, m):
    between = m * r + (1 - m) * f
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(between)
            out = critic(between)
        slopes = tf.norm(inner.gradient(out, between), axis=1)
        penalty = tf.reduce_mean((slopes - 1.0) ** 2)
        loss = tf.reduce_mean(critic(f)) - tf.reduce_mean(critic(r)) + 10.0 * penalty
    opt.apply_gradients(zip(tape.gradient(loss, critic.trainable_variables), critic.trainable_variables))
    return loss, penalty, tf.reduce_max(slopes)


for step, batch in enumerate(ds):
    print("step", step, "loss %.12g penalty %.12g steepest %.12g" % tuple(float(v) for v in train_step(*batch)))
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in critic.trainable_variables])
