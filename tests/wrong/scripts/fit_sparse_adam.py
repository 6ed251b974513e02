"""issue: fit: a Dense layer on sparse rows, whose lookup makes one slice of each feature in a batch, and Adam"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(8)
x = np.random.normal(size=(35, 6)) * (np.random.random((35, 6)) < 0.3)
y = np.random.normal(size=(35, 1))
ds = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), y)).batch(8)
model = keras.Sequential(
    [keras.Input((6,), sparse=True), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
history = model.fit(ds, epochs=1, shuffle=False, verbose=0)
print("loss", [f"{value:.12g}" for value in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
