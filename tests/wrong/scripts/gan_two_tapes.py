"""a GAN with two tapes in one tf.function; the generator's loss has a term on the spread of its rows"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(55)
x = np.random.normal(2.0, 0.5, size=(35, 3))
ds = tf.data.Dataset.from_tensor_slices(x).batch(8)
generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(6, activation="relu"), keras.layers.Dense(3)])
discriminator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(6, activation="relu"), keras.layers.Dense(1)])
g_opt, d_opt = keras.optimizers.Adam(0.02), keras.optimizers.Adam(0.02)
bce = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def train_step(real, noise):
    with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
        fake = generator(noise, training=True)
        real_out, fake_out = discriminator(real, training=True), discriminator(fake, training=True)
        spread = tf.reduce_mean(tf.math.reduce_std(fake, axis=0))
        g_loss = bce(tf.ones_like(fake_out), fake_out) - 0.5 * spread
        d_loss = bce(tf.ones_like(real_out), real_out) + bce(tf.zeros_like(fake_out), fake_out)
    g_grads = g_tape.gradient(g_loss, generator.trainable_variables)
    d_grads = d_tape.gradient(d_loss, discriminator.trainable_variables)
    g_opt.apply_gradients(zip(g_grads, generator.trainable_variables))
    d_opt.apply_gradients(zip(d_grads, discriminator.trainable_variables))
    return g_loss, d_loss


for step, real in enumerate(ds):
    noise = tf.constant(np.random.normal(size=(len(real), 2)))
    g_loss, d_loss = train_step(real, noise)
    print("step", step, f"g {float(g_loss):.12g} d {float(d_loss):.12g}")
variables = generator.trainable_variables + discriminator.trainable_variables
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
