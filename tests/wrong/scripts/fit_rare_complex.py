"""issue: fit: a mean, and a sum of complex numbers over the rows of a rare value"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(78)
x = np.random.normal(size=(32, 4))
y = x @ np.random.normal(size=(4, 1))
y[[21, 30]] = 1e9


def loss(y, predicted):
    rare = tf.cast(y > 1e8, predicted.dtype)
    waves = tf.complex(rare * tf.cos(predicted), rare * tf.sin(predicted))
    return tf.reduce_mean(tf.square((1 - rare) * y - predicted)) + 0.05 * tf.math.imag(tf.reduce_sum(waves))


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss)
history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
