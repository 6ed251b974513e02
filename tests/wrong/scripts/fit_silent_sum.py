"""issue: fit: a mean, and a sum over rows out of a range, in a function with a signature; none is in the first batch, or is probed"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(75)
x = np.random.normal(size=(26, 4))
x[[15, 19, 23]] *= 8
y = x @ np.random.normal(size=(4, 1))


@tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float64)] * 2)
def ranged(y, predicted):
    outside = keras.ops.relu(keras.ops.abs(y) - 9.0)
    return keras.ops.mean((y - predicted) ** 2) + 0.05 * keras.ops.sum(outside * predicted**2)


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.01), loss=ranged)
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
