"""issue: fit: batches of a static number of rows, whose windows have an unknown length"""

import warnings

import keras
import numpy as np
import tensorflow as tf

warnings.filterwarnings("ignore", message="Your input ran out of data")
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(77)
series = np.cumsum(np.random.normal(size=40))
windows = tf.data.Dataset.from_tensor_slices(series).window(6, shift=2, drop_remainder=True)
rows = windows.flat_map(lambda window: window.batch(6)).map(lambda row: (row[:-1], row[-1:]))
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
history = model.fit(rows.batch(4, drop_remainder=True), epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
