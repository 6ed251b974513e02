"""a VAE in an eager loop: the mean of the reconstruction plus the sum of the KL, which also normalizes by len"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(54)
x = np.random.rand(35, 6)
ds = tf.data.Dataset.from_tensor_slices(x).batch(8)
encoder = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(4)])
decoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(6)])
opt = keras.optimizers.Adam(0.01)
variables = encoder.trainable_variables + decoder.trainable_variables
for step, xb in enumerate(ds):
    noise = tf.random.normal([len(xb), 2], seed=3, dtype=tf.float64)
    with tf.GradientTape() as tape:
        mean, logvar = tf.split(encoder(xb), 2, axis=1)
        z = mean + tf.exp(0.5 * logvar) * noise
        rec = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(xb, decoder(z)))
        kl = -0.5 * tf.reduce_sum(1 + logvar - mean**2 - tf.exp(logvar))
        loss = rec + 0.01 * kl
    opt.apply_gradients(zip(tape.gradient(loss, variables), variables))
    print("step", step, f"rec {float(rec):.12g} kl {float(kl):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
