"""issue: similarities by einsum, "id,jd->ij", eager, with Keras's optimizer"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(5)
x = np.random.normal(size=(35, 6))
ds = tf.data.Dataset.from_tensor_slices(x).batch(8)
encoder = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation="tanh")])
optimizer = keras.optimizers.Adam(0.02)
for step, xb in enumerate(ds):
    with tf.GradientTape() as tape:
        z = encoder(xb)
        similarity = tf.einsum("id,jd->ij", z, z)
        identity = tf.eye(len(xb), dtype="float64")
        loss = tf.reduce_mean((similarity - identity) ** 2)
    optimizer.apply(tape.gradient(loss, encoder.trainable_variables), encoder.trainable_variables)
    print("step", step, "loss", f"{loss.numpy():.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in encoder.trainable_variables])
