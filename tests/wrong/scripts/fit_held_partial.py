"""issue: fit: run_eagerly, and an activation is a partial of a function that counts its calls"""

import functools

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(84)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))
calls = []


def scaled(x, calls):
    calls.append(1)
    return x * (1.0 + 0.01 * len(calls))


activation = keras.layers.Activation(functools.partial(scaled, calls=calls))
model = keras.Sequential([keras.Input((6,)), activation, keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", run_eagerly=True)
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
