"""issue: fit: a loss over pairs of rows, which a second fit's batches of another size do not keep together"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(1)
x, y = np.random.normal(size=(72, 3)), np.random.normal(size=(72, 1))


def by_pairs(y, found):
    squares = tf.reshape(tf.square(y - found), [-1])
    even = tf.shape(squares)[0] // 2 * 2
    return tf.reduce_mean(tf.reshape(squares[:even], [-1, 2]) * tf.constant([1.5, 0.5], squares.dtype))


model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), by_pairs)
losses = []
for rows in (12, 10):  # of two and of three ranks, whole pairs and not
    losses += model.fit(x, y, batch_size=rows, epochs=1, shuffle=False, verbose=0).history["loss"]
print([f"{loss:.12g}" for loss in losses])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
